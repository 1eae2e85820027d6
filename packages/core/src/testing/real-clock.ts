import type { Clock } from '../clock.ts';

/** Real time, for tests that talk to real processes, sockets and machines. */
export function createRealClock(): Clock {
  return {
    now: () => Date.now(),
    monotonic: () => performance.now(),
    timer(milliseconds, callback) {
      const handle = setTimeout(callback, milliseconds);
      handle.unref();
      return { [Symbol.dispose]: () => clearTimeout(handle) };
    },
  };
}
