/** Work that outlives its callers, known until it has settled. */
export interface BackgroundWork {
  /** Returns `work` as it is. */
  track<T>(work: Promise<T>): Promise<T>;
  /** Resolves when all that was under way has settled; never rejects. */
  settled(): Promise<void>;
}

export function createBackgroundWork(): BackgroundWork {
  const underWay = new Set<Promise<unknown>>();
  return {
    track(work) {
      const settled: Promise<unknown> = work.catch(() => undefined).finally(() => underWay.delete(settled));
      underWay.add(settled);
      return work;
    },
    async settled() {
      await Promise.all(underWay);
    },
  };
}
