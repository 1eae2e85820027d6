import type { Clock } from './clock.ts';
import { PlatformError } from './errors.ts';

/** One step of one key; its signal aborts when something pre-empts it. */
export type Work<T> = (signal: AbortSignal) => Promise<T>;

/** What a key is doing. */
export interface RunningStep {
  readonly operation: string;
  /** Monotonic milliseconds. */
  readonly since: number;
}

/**
 * The single serialisation point of the life cycle: one queue per key, steps of a key run one after the other, keys do not
 * know each other. Callers get their step's outcome; the step goes on when the caller stops listening.
 */
export interface KeyedQueue {
  /** Runs `work` after everything before it. Waiting longer than `waitMs`: `conflict` naming what is under way. */
  run<T>(key: string, operation: string, work: Work<T>): Promise<T>;
  /** Like `run`, but shares the outcome of the same operation when it is running or waiting already. */
  join<T>(key: string, operation: string, work: Work<T>): Promise<T>;
  /** For background actors: runs only when the key is idle, so that no decision grows stale in a queue. */
  tryRun<T>(key: string, operation: string, work: Work<T>): Promise<T> | undefined;
  /**
   * Takes the key: aborts the running step and fails the waiting ones with `reason` at once, gives the running step
   * `graceMs` to unwind, then runs `work` whether it did or not. Joins a pre-emption of the same operation.
   */
  preempt<T>(key: string, operation: string, reason: Error, work: Work<T>): Promise<T>;
  /** What runs on the key now. */
  current(key: string): RunningStep | undefined;
  /** Keys with a running step. */
  readonly size: number;
}

export interface KeyedQueueOptions {
  readonly clock: Clock;
  /** Longest wait of a queued request, milliseconds. */
  readonly waitMs: number;
  /** How long an aborted step may unwind before the key is taken from it, milliseconds. */
  readonly graceMs: number;
  /** Longest queue of one key; more is `capacity`. */
  readonly maxWaiting: number;
}

interface Job {
  readonly operation: string;
  readonly controller: AbortController;
  readonly work: Work<unknown>;
  /** What callers see; settles early when the job is pre-empted. */
  readonly outcome: PromiseWithResolvers<unknown>;
  /** Settles when the work itself has settled, after an abort too. */
  readonly settled: PromiseWithResolvers<void>;
  readonly preempts: boolean;
  since: number;
  timer: Disposable | undefined;
}

interface Lane {
  running: Job;
  waiting: Job[];
}

export function createKeyedQueue(options: KeyedQueueOptions): KeyedQueue {
  const { clock } = options;
  const lanes = new Map<string, Lane>();

  function createJob(operation: string, work: Work<unknown>, preempts: boolean): Job {
    const outcome = Promise.withResolvers<unknown>();
    // Every caller holds the same promise; a caller that went away must not turn a failure into an unhandled rejection.
    outcome.promise.catch(() => undefined);
    return {
      operation,
      controller: new AbortController(),
      work,
      outcome,
      settled: Promise.withResolvers<void>(),
      preempts,
      since: clock.monotonic(),
      timer: undefined,
    };
  }

  function fail(job: Job, reason: Error): void {
    job.timer?.[Symbol.dispose]();
    job.outcome.reject(reason);
    job.controller.abort(reason);
  }

  async function execute(key: string, lane: Lane, job: Job): Promise<void> {
    job.timer?.[Symbol.dispose]();
    job.since = clock.monotonic();
    try {
      job.outcome.resolve(await job.work(job.controller.signal));
    } catch (error) {
      job.outcome.reject(error);
    }
    job.settled.resolve();
    if (lane.running !== job) return; // pre-empted: the lane belongs to somebody else
    const next = lane.waiting.shift();
    if (next === undefined) {
      lanes.delete(key);
      return;
    }
    lane.running = next;
    void execute(key, lane, next);
  }

  function start(key: string, job: Job): void {
    const lane: Lane = { running: job, waiting: [] };
    lanes.set(key, lane);
    void execute(key, lane, job);
  }

  function wait(lane: Lane, job: Job): void {
    if (lane.waiting.length >= options.maxWaiting) {
      fail(
        job,
        new PlatformError('capacity', `more than ${options.maxWaiting} requests wait for this sandbox`, {
          retryAfterSeconds: 1,
        }),
      );
      return;
    }
    lane.waiting.push(job);
    job.timer = clock.timer(options.waitMs, () => {
      lane.waiting = lane.waiting.filter((waiting) => waiting !== job);
      fail(
        job,
        new PlatformError('conflict', `waited ${options.waitMs / 1000} s for '${lane.running.operation}' to finish`),
      );
    });
  }

  function enqueue<T>(key: string, operation: string, work: Work<T>, preempts: 'preempts' | 'queues'): Promise<T> {
    const job = createJob(operation, work, preempts === 'preempts');
    const lane = lanes.get(key);
    if (lane === undefined) start(key, job);
    else wait(lane, job);
    return job.outcome.promise as Promise<T>;
  }

  /** Waits for the step that lost the key, but never longer than the grace. */
  async function unwound(loser: Job): Promise<void> {
    const grace = Promise.withResolvers<void>();
    using _timer = clock.timer(options.graceMs, grace.resolve);
    await Promise.race([loser.settled.promise, grace.promise]);
  }

  return {
    run: (key, operation, work) => enqueue(key, operation, work, 'queues'),
    join<T>(key: string, operation: string, work: Work<T>) {
      const lane = lanes.get(key);
      const same =
        lane === undefined ? undefined : [lane.running, ...lane.waiting].find((job) => job.operation === operation);
      return same === undefined ? enqueue(key, operation, work, 'queues') : (same.outcome.promise as Promise<T>);
    },
    tryRun(key, operation, work) {
      return lanes.has(key) ? undefined : enqueue(key, operation, work, 'queues');
    },
    preempt<T>(key: string, operation: string, reason: Error, work: Work<T>) {
      const lane = lanes.get(key);
      if (lane === undefined) return enqueue(key, operation, work, 'preempts');
      const loser = lane.running;
      if (loser.preempts && loser.operation === operation) return loser.outcome.promise as Promise<T>;
      const job = createJob(
        operation,
        async (signal) => {
          await unwound(loser);
          return await work(signal);
        },
        true,
      );
      lane.running = job;
      const waiting = lane.waiting;
      lane.waiting = [];
      fail(loser, reason);
      for (const dropped of waiting) fail(dropped, reason);
      void execute(key, lane, job);
      return job.outcome.promise as Promise<T>;
    },
    current(key) {
      const lane = lanes.get(key);
      return lane === undefined ? undefined : { operation: lane.running.operation, since: lane.running.since };
    },
    get size() {
      return lanes.size;
    },
  };
}
