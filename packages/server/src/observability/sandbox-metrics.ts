import type { Agent, GuestMetrics } from '@agentenv/agent';
import {
  type Clock,
  callWithin,
  createSampleSeries,
  type Log,
  type SampleCodec,
  type SampleSeries,
} from '@agentenv/core';
import { delay } from '../delay.ts';

/** What a guest used at one moment; sizes in bytes. */
export interface MetricSample extends Omit<GuestMetrics, 'agentRss'> {
  /** Milliseconds since the epoch, never twice the same for one sandbox. */
  readonly at: number;
}

export interface SandboxMetricsConfig {
  /** Between samples of a sandbox that does something, or whose metrics somebody reads, milliseconds. */
  readonly intervalMs: number;
  /** Between samples of one that does nothing: each wakes its machine up, which under emulation costs 6 ms of CPU. */
  readonly idleIntervalMs: number;
  /**
   * How long the first sample looks at the CPUs, milliseconds: a guest measures them since it was asked before, which a
   * restored one was when its template was made.
   */
  readonly firstLookMs: number;
  /** Samples kept of each sandbox. */
  readonly samplesPerSandbox: number;
  /** Guests that are asked at the same time. */
  readonly concurrency: number;
}

export const DEFAULT_SANDBOX_METRICS_CONFIG: SandboxMetricsConfig = {
  intervalMs: 5_000,
  idleIntervalMs: 30_000,
  firstLookMs: 250,
  samplesPerSandbox: 120,
  concurrency: 4,
};

/** What running sandboxes use, over time. */
export interface SandboxMetrics extends Disposable {
  /** Samples a guest until disposed, then forgets everything about it. */
  attach(id: string, agent: Pick<Agent, 'metrics'>): Disposable;
  /**
   * Samples between two times, both included, oldest first; empty for a sandbox that is not attached. What is older than an
   * interval is brought up to date first, for as long as a reader may be kept waiting.
   */
  range(id: string, from: number, to: number): Promise<readonly MetricSample[]>;
  /** The newest sample of each of these sandboxes that has one, brought up to date in the same way. */
  newest(ids: readonly string[]): Promise<ReadonlyMap<string, MetricSample>>;
}

export interface SandboxMetricsDependencies {
  readonly clock: Clock;
  readonly log: Log;
  readonly config: SandboxMetricsConfig;
  /** Counts samples by outcome. */
  readonly onSample: (result: 'ok' | 'error') => void;
}

interface Watched {
  readonly id: string;
  readonly agent: Pick<Agent, 'metrics'>;
  readonly series: SampleSeries<MetricSample>;
  readonly detached: AbortController;
  timer: Disposable | undefined;
  /** Under way. */
  sampling: Promise<void> | undefined;
  /** Monotonic milliseconds of the newest sample. */
  sampledAt: number;
  /** Monotonic milliseconds until which somebody is taken to be reading. */
  readUntil: number;
}

/** Longest answer of a guest, milliseconds. */
const GUEST_MS = 10_000;
/** Longest a reader waits for a newer sample, milliseconds. */
const READER_WAIT_MS = 2_000;
/** How long after a read a sandbox is sampled as if it were read again, milliseconds. */
const READ_MS = 120_000;
/** From this share of its CPUs on, percent, a guest is not idle. */
const BUSY_PCT = 3;

const CODEC: SampleCodec<MetricSample> = {
  width: 8,
  encode: (sample) => [
    sample.at,
    sample.cpuCount,
    sample.cpuUsedPct,
    sample.memTotal,
    sample.memUsed,
    sample.memCache,
    sample.diskTotal,
    sample.diskUsed,
  ],
  decode: ([
    at = 0,
    cpuCount = 0,
    cpuUsedPct = 0,
    memTotal = 0,
    memUsed = 0,
    memCache = 0,
    diskTotal = 0,
    diskUsed = 0,
  ]) => ({ at, cpuCount, cpuUsedPct, memTotal, memUsed, memCache, diskTotal, diskUsed }),
};

export function createSandboxMetrics(deps: SandboxMetricsDependencies): SandboxMetrics {
  const { clock, config, log } = deps;
  const watched = new Map<string, Watched>();
  const turns = createTurns(config.concurrency);

  async function ask(entry: Watched): Promise<void> {
    const { id, agent, series, detached } = entry;
    using _turn = await turns.take();
    if (detached.signal.aborted) return;
    try {
      const bounds = { what: 'the guest', timeoutMs: GUEST_MS, graceMs: 0, signal: detached.signal };
      const { agentRss: _, ...metrics } = await callWithin(clock, bounds, async (signal) => {
        if (series.length === 0) {
          await agent.metrics(signal);
          if (config.firstLookMs > 0) await delay(clock, config.firstLookMs, signal);
        }
        return await agent.metrics(signal);
      });
      series.push({ ...metrics, at: Math.max(Math.trunc(clock.now()), (series.newest?.at ?? 0) + 1) });
      entry.sampledAt = clock.monotonic();
      deps.onSample('ok');
    } catch (error) {
      // A guest that does not answer is found out by whoever needs it; its next sample is tried in time.
      if (detached.signal.aborted) return;
      deps.onSample('error');
      log.debug({ sandboxId: id, err: error }, 'metrics of a sandbox could not be read');
    }
  }

  function intervalOf({ series, readUntil }: Watched): number {
    const busy = (series.newest?.cpuUsedPct ?? 0) >= BUSY_PCT;
    return busy || readUntil > clock.monotonic() ? config.intervalMs : config.idleIntervalMs;
  }

  function schedule(entry: Watched, milliseconds: number): void {
    entry.timer?.[Symbol.dispose]();
    if (entry.detached.signal.aborted) return;
    entry.timer = clock.timer(milliseconds, () => void sample(entry));
  }

  function sample(entry: Watched): Promise<void> {
    entry.sampling ??= ask(entry).finally(() => {
      entry.sampling = undefined;
      schedule(entry, intervalOf(entry));
    });
    return entry.sampling;
  }

  /** Notes that somebody reads; resolves when what they read is as new as they can expect. */
  async function bringUpToDate(entries: readonly Watched[]): Promise<void> {
    const now = clock.monotonic();
    const stale = entries.filter((entry) => {
      entry.readUntil = now + READ_MS;
      return entry.series.length === 0 || now - entry.sampledAt >= config.intervalMs;
    });
    if (stale.length === 0) return;
    const enough = Promise.withResolvers<void>();
    using _limit = clock.timer(READER_WAIT_MS, enough.resolve);
    await Promise.race([Promise.all(stale.map(sample)), enough.promise]);
  }

  function detach(entry: Watched): void {
    entry.detached.abort();
    entry.timer?.[Symbol.dispose]();
    if (watched.get(entry.id) === entry) watched.delete(entry.id);
  }

  return {
    attach(id, agent) {
      const entry: Watched = {
        ...{ id, agent, series: createSampleSeries(config.samplesPerSandbox, CODEC), detached: new AbortController() },
        ...{ timer: undefined, sampling: undefined, sampledAt: 0, readUntil: 0 },
      };
      watched.set(id, entry);
      // Not at once: the first command of a new sandbox comes first.
      schedule(entry, config.intervalMs);
      return { [Symbol.dispose]: () => detach(entry) };
    },
    async range(id, from, to) {
      const entry = watched.get(id);
      if (entry === undefined) return [];
      if (to >= clock.now()) await bringUpToDate([entry]);
      return entry.series.between(from, to);
    },
    async newest(ids) {
      const entries = [...new Set(ids)].flatMap((id) => watched.get(id) ?? []);
      await bringUpToDate(entries);
      const samples = entries.flatMap(({ id, series: { newest } }) =>
        newest === undefined ? [] : [[id, newest] as const],
      );
      return new Map(samples);
    },
    [Symbol.dispose]() {
      for (const entry of [...watched.values()]) detach(entry);
    },
  };
}

/** So many may work at once; the others wait for their turn. */
function createTurns(count: number): { take(): Promise<Disposable> } {
  let free = count;
  const waiting: (() => void)[] = [];
  const turn: Disposable = {
    [Symbol.dispose]() {
      const next = waiting.shift();
      if (next === undefined) free++;
      else next();
    },
  };
  return {
    async take() {
      if (free > 0) free--;
      else {
        const { promise, resolve } = Promise.withResolvers<void>();
        waiting.push(resolve);
        await promise;
      }
      return turn;
    },
  };
}
