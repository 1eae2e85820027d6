import type { Clock } from '@agentenv/core';

/** Longest delay a Node timer takes, milliseconds; longer ones are set in parts. */
const LONGEST_TIMER_MS = 2_147_483_647;

/** The real clock of the host. Its timers never keep the process alive. */
export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  timer(milliseconds, callback) {
    const due = performance.now() + milliseconds;
    let handle: NodeJS.Timeout;
    const arm = (): void => {
      const remaining = due - performance.now();
      handle = setTimeout(
        remaining > LONGEST_TIMER_MS ? arm : callback,
        Math.min(LONGEST_TIMER_MS, Math.max(0, remaining)),
      );
      handle.unref();
    };
    arm();
    return {
      [Symbol.dispose]() {
        clearTimeout(handle);
      },
    };
  },
};
