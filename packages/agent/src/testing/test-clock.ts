import type { Clock } from '@agentenv/core';

/** The real clock, for tests that talk to real processes. */
export const testClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  timer(milliseconds, callback) {
    const timer = setTimeout(callback, milliseconds);
    timer.unref();
    return {
      [Symbol.dispose]() {
        clearTimeout(timer);
      },
    };
  },
};
