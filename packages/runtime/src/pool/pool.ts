import { type Clock, type Log, PlatformError } from '@agentenv/core';

/** Something made in advance. `lost` resolves when it can no longer be used, whoever ended it. */
export interface PoolEntry extends AsyncDisposable {
  readonly lost: Promise<unknown>;
}

export interface PoolOptions<T extends PoolEntry> {
  /** Entries kept ready when nobody asks. */
  readonly low: number;
  /** Entries kept ready at most, however large the demand. */
  readonly high: number;
  /** Entries made at the same time. */
  readonly concurrency: number;
  /** Claims within this time count as the demand that decides the target. Milliseconds. */
  readonly demandWindowMs: number;
  /** Pause after a failed refill, doubled up to 32 times with every further failure. Milliseconds. */
  readonly retryMs: number;
  /** Time without a claim or foreground request before anything is made: a caller's next request comes first. Milliseconds. */
  readonly settleMs: number;
  readonly create: (signal: AbortSignal) => Promise<T>;
  readonly clock: Clock;
  readonly log: Log;
}

export interface PoolStatus {
  readonly ready: number;
  readonly target: number;
  readonly hits: number;
  readonly misses: number;
}

/** Entries made before they are asked for. */
export interface Pool<T extends PoolEntry> extends AsyncDisposable {
  /** The oldest ready entry, which now belongs to the caller; undefined counts as a miss. */
  claim(): T | undefined;
  /** While any of these is held nothing new is started, so that waiting callers have the machine to themselves. */
  foreground(): Disposable;
  /** Gives up every ready entry and stays empty until `resume`: for memory pressure. */
  suspend(): Promise<void>;
  resume(): void;
  status(): PoolStatus;
}

const MAX_BACKOFF_STEPS = 5;

/**
 * A pool whose target follows demand: as many entries as were claimed within the last window, between `low` and `high`.
 */
export function createPool<T extends PoolEntry>(options: PoolOptions<T>): Pool<T> {
  const { low, high, clock, log } = options;
  const stopping = new AbortController();
  const building = new Set<Promise<void>>();
  const ready: T[] = [];
  let claims: number[] = [];
  let hits = 0;
  let misses = 0;
  let failures = 0;
  let foregrounds = 0;
  let making = 0;
  let suspended = false;
  let quietUntil = Number.NEGATIVE_INFINITY;
  let timer: Disposable | undefined;
  let timerDue = Number.POSITIVE_INFINITY;

  function target(): number {
    const since = clock.monotonic() - options.demandWindowMs;
    claims = claims.filter((at) => at > since);
    return Math.max(low, Math.min(high, claims.length));
  }

  /** Nothing is started within this time from now. */
  function keepQuiet(milliseconds: number): void {
    quietUntil = Math.max(quietUntil, clock.monotonic() + milliseconds);
  }

  function wakeIn(milliseconds: number): void {
    const due = clock.monotonic() + milliseconds;
    if (stopping.signal.aborted || due >= timerDue) return;
    timer?.[Symbol.dispose]();
    timerDue = due;
    timer = clock.timer(milliseconds, () => {
      timerDue = Number.POSITIVE_INFINITY;
      settle();
    });
  }

  async function giveUp(entry: T, why: string): Promise<void> {
    try {
      await entry[Symbol.asyncDispose]();
    } catch (error) {
      log.error({ error, why }, 'a pool entry could not be released');
    }
  }

  function admit(entry: T): void {
    if (stopping.signal.aborted || suspended) {
      track(giveUp(entry, 'the pool no longer wants it'));
      return;
    }
    ready.push(entry);
    void entry.lost.then(() => {
      const at = ready.indexOf(entry);
      if (at < 0) return;
      ready.splice(at, 1);
      log.warn({}, 'a pool entry was lost while it waited');
      track(giveUp(entry, 'lost'));
      wakeIn(options.retryMs);
    });
  }

  function track(work: Promise<void>): void {
    const tracked: Promise<void> = work.finally(() => building.delete(tracked));
    building.add(tracked);
  }

  async function make(): Promise<void> {
    making++;
    try {
      const entry = await options.create(stopping.signal);
      failures = 0;
      admit(entry);
    } catch (caught) {
      if (stopping.signal.aborted) return;
      const error = PlatformError.fromUnknown(caught);
      log.warn({ error, failures }, 'a pool entry could not be made');
      const pause = options.retryMs * 2 ** Math.min(failures++, MAX_BACKOFF_STEPS);
      keepQuiet(pause);
      wakeIn(pause);
    } finally {
      making--;
      if (failures === 0) settle();
    }
  }

  function shrink(wanted: number): void {
    // A whole window without demand has passed when the target is below what is ready: keep the newest entries.
    while (ready.length > wanted) {
      const entry = ready.shift();
      if (entry !== undefined) track(giveUp(entry, 'more than needed'));
    }
  }

  function settle(): void {
    if (stopping.signal.aborted || suspended) return;
    const wanted = target();
    shrink(wanted);
    const [oldest] = claims;
    if (oldest !== undefined) wakeIn(oldest + options.demandWindowMs - clock.monotonic());
    if (foregrounds > 0 || ready.length + making >= wanted) return;
    const quietIn = quietUntil - clock.monotonic();
    if (quietIn > 0) {
      wakeIn(quietIn);
      return;
    }
    while (making < options.concurrency && ready.length + making < wanted) track(make());
  }

  settle();

  return {
    claim() {
      claims.push(clock.monotonic());
      keepQuiet(options.settleMs);
      if (claims.length > high) claims.shift();
      const entry = ready.shift();
      if (entry === undefined) misses++;
      else hits++;
      settle();
      return entry;
    },
    foreground() {
      foregrounds++;
      let held = true;
      return {
        [Symbol.dispose]() {
          if (!held) return;
          held = false;
          foregrounds--;
          keepQuiet(options.settleMs);
          if (foregrounds === 0) settle();
        },
      };
    },
    async suspend() {
      suspended = true;
      shrink(0);
      await Promise.all(building);
    },
    resume() {
      if (!suspended) return;
      suspended = false;
      settle();
    },
    status: () => ({ ready: ready.length, target: suspended ? 0 : target(), hits, misses }),
    async [Symbol.asyncDispose]() {
      stopping.abort(new PlatformError('canceled', 'the pool is closed'));
      timer?.[Symbol.dispose]();
      shrink(0);
      while (building.size > 0) await Promise.all(building);
    },
  };
}
