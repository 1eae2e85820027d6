import type { Agent } from '@agentenv/agent';
import { type Clock, type Log, PlatformError } from '@agentenv/core';

/** Guests are compared with the host this often. */
export const COMPARE_MS = 30_000;
/** A guest's wall clock is stepped when it is certainly further off. */
export const MAX_SKEW_MS = 100;
/** Guests asked at the same time; the rest wait their turn, so that a hundred idle guests do not wake at once. */
const CONCURRENCY = 4;
const MAX_STEPS = 3;

export interface KeptClock {
  readonly agent: Pick<Agent, 'clockSkew' | 'setClock'>;
  /** False while the guest is stopped and cannot answer. */
  readonly running: () => boolean;
  readonly log: Log;
}

/** One timer that keeps the wall clocks of all guests near the host's. */
export interface ClockKeeper extends AsyncDisposable {
  /** Compares this guest from now on, until disposed. */
  keep(guest: KeptClock): Disposable;
}

export function createClockKeeper(clock: Clock): ClockKeeper {
  const guests = new Set<KeptClock>();
  let timer: Disposable | undefined;
  let round: Promise<void> | undefined;
  let disposed = false;

  /** True when the guest was certainly off and has been stepped. */
  async function stepOnce({ agent, running, log }: KeptClock): Promise<boolean> {
    if (!running()) return false;
    const asked = clock.monotonic();
    const skew = await agent.clockSkew();
    // The guest read its clock somewhere on the way; on a loaded host half the way may be longer than the limit.
    const uncertainty = (clock.monotonic() - asked) / 2;
    if (Math.abs(skew) - uncertainty <= MAX_SKEW_MS || !running()) return false;
    await agent.setClock();
    log.info({ skewMs: Math.round(skew) }, 'the wall clock of a guest was stepped');
    return true;
  }

  async function compare(guest: KeptClock): Promise<void> {
    try {
      // A step arrives late by the way to the guest, so it is looked at again; on a quiet host once is enough.
      for (let attempt = 0; attempt < MAX_STEPS; attempt++) {
        if (!(await stepOnce(guest))) return;
      }
    } catch (caught) {
      // A guest that was stopped or ended meanwhile; if its channel is broken the sandbox's end says so.
      guest.log.debug({ error: PlatformError.fromUnknown(caught) }, 'the clock of a guest could not be compared');
    }
  }

  async function compareAll(): Promise<void> {
    const waiting = [...guests];
    const worker = async (): Promise<void> => {
      for (let guest = waiting.shift(); guest !== undefined; guest = waiting.shift()) {
        if (guests.has(guest)) await compare(guest);
      }
    };
    await Promise.all(Array.from({ length: CONCURRENCY }, worker));
  }

  function schedule(): void {
    if (disposed || timer !== undefined || guests.size === 0) return;
    timer = clock.timer(COMPARE_MS, () => {
      timer = undefined;
      round = compareAll().finally(schedule);
    });
  }

  return {
    keep(guest) {
      guests.add(guest);
      schedule();
      return {
        [Symbol.dispose]() {
          guests.delete(guest);
        },
      };
    },
    async [Symbol.asyncDispose]() {
      disposed = true;
      guests.clear();
      timer?.[Symbol.dispose]();
      await round;
    },
  };
}
