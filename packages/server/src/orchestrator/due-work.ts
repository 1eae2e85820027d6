/**
 * Work that is due: a limited number of keys at a time, of those that wait the one with the earliest time first. A key that
 * waits already is not taken twice, one that is being worked on waits for that. Disposing forgets what waits.
 */
export interface DueWork extends Disposable {
  /** `at`: milliseconds since the epoch. */
  add(key: string, at: number): void;
}

/** `work` must not reject. */
export function createDueWork(width: number, work: (key: string) => Promise<void>): DueWork {
  const waiting = new Map<string, number>();
  const busy = new Set<string>();
  let disposed = false;

  function earliest(): string | undefined {
    let found: string | undefined;
    let time = Number.POSITIVE_INFINITY;
    for (const [key, at] of waiting) {
      if (at >= time || busy.has(key)) continue;
      found = key;
      time = at;
    }
    return found;
  }

  async function run(key: string): Promise<void> {
    busy.add(key);
    await work(key);
    busy.delete(key);
    pump();
  }

  function pump(): void {
    while (busy.size < width) {
      const key = earliest();
      if (key === undefined) return;
      waiting.delete(key);
      void run(key);
    }
  }

  return {
    add(key, at) {
      if (disposed || waiting.has(key)) return;
      waiting.set(key, at);
      pump();
    },
    [Symbol.dispose]() {
      disposed = true;
      waiting.clear();
    },
  };
}
