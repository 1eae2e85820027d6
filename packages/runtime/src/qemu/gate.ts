import { PlatformError } from '@agentenv/core';

/** Lets a limited number of callers do something at once; the others wait in the order they came. */
export interface Gate {
  /** Rejects with `canceled` when the signal ends the wait. Disposing the pass lets the next one in. */
  enter(signal?: AbortSignal): Promise<Disposable>;
}

/** A gate for `width` callers at once. */
export function createGate(width: number): Gate {
  const waiting: (() => void)[] = [];
  let inside = 0;

  function pass(): Disposable {
    let held = true;
    return {
      [Symbol.dispose]() {
        if (!held) return;
        held = false;
        const next = waiting.shift();
        if (next === undefined) inside--;
        else next();
      },
    };
  }

  return {
    async enter(signal) {
      if (signal?.aborted) throw PlatformError.fromUnknown(signal.reason);
      if (inside < width) {
        inside++;
        return pass();
      }
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      const onAbort = (): void => {
        const at = waiting.indexOf(resolve);
        if (at < 0) return;
        waiting.splice(at, 1);
        reject(PlatformError.fromUnknown(signal?.reason));
      };
      waiting.push(resolve);
      signal?.addEventListener('abort', onAbort, { once: true });
      try {
        await promise;
      } finally {
        signal?.removeEventListener('abort', onAbort);
      }
      return pass();
    },
  };
}
