import type { Clock } from '../clock.ts';

interface PendingTimer {
  readonly due: number;
  readonly sequence: number;
  readonly callback: () => void;
}

/** A clock that only moves when a test says so; wall and monotonic time move together unless the wall is stepped. */
export interface FakeClock extends Clock {
  /**
   * Moves time forward by `milliseconds`, firing timers in order of their due time. Between two timers the pending
   * promise reactions run, so work that a timer started may set further timers inside the same advance.
   */
  advance(milliseconds: number): Promise<void>;
  /** Steps the wall clock alone, as an operator or NTP would; timers are monotonic and do not move. */
  stepWall(milliseconds: number): void;
  /** Timers that are set and have not fired; 0 proves that nothing was left behind. */
  readonly pendingTimers: number;
  /** Milliseconds until the next timer fires, undefined when none is set. */
  readonly nextTimerIn: number | undefined;
}

/** Lets every promise reaction that is ready run, including those they make ready, without real time passing. */
async function settleReactions(): Promise<void> {
  await new Promise<void>((resolve) => setImmediate(resolve));
}

/** Creates a fake clock whose wall time starts at `start` (milliseconds since the epoch) and whose monotonic time starts at 0. */
export function createFakeClock(start: number = Date.UTC(2026, 0, 1)): FakeClock {
  let monotonic = 0;
  let wallOffset = start;
  let sequence = 0;
  const timers = new Set<PendingTimer>();

  function next(): PendingTimer | undefined {
    let first: PendingTimer | undefined;
    for (const timer of timers) {
      if (
        first === undefined ||
        timer.due < first.due ||
        (timer.due === first.due && timer.sequence < first.sequence)
      ) {
        first = timer;
      }
    }
    return first;
  }

  return {
    now: () => wallOffset + monotonic,
    monotonic: () => monotonic,
    timer(milliseconds, callback) {
      const timer: PendingTimer = { due: monotonic + Math.max(0, milliseconds), sequence: sequence++, callback };
      timers.add(timer);
      return {
        [Symbol.dispose]() {
          timers.delete(timer);
        },
      };
    },
    async advance(milliseconds) {
      const target = monotonic + milliseconds;
      await settleReactions();
      for (let timer = next(); timer !== undefined && timer.due <= target; timer = next()) {
        monotonic = Math.max(monotonic, timer.due);
        timers.delete(timer);
        timer.callback();
        await settleReactions();
      }
      monotonic = target;
      await settleReactions();
    },
    stepWall(milliseconds) {
      wallOffset += milliseconds;
    },
    get pendingTimers() {
      return timers.size;
    },
    get nextTimerIn() {
      const timer = next();
      return timer === undefined ? undefined : timer.due - monotonic;
    },
  };
}
