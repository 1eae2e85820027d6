/** An answer about free space that is held: the job that asks has its turn and stays there. */
export function createHeldSpace() {
  const reached = Promise.withResolvers<void>();
  const gate = Promise.withResolvers<void>();
  return {
    /** Resolves when somebody asks. */
    reached: reached.promise,
    /** Lets everybody go on: there is room for anything. */
    release: gate.resolve,
    async freeBytes(): Promise<number> {
      reached.resolve();
      await gate.promise;
      return Number.MAX_SAFE_INTEGER;
    },
  };
}
