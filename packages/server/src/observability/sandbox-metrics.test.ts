import type { GuestMetrics } from '@agentenv/agent';
import { PlatformError, SILENT_LOG } from '@agentenv/core';
import { createFakeClock, type FakeClock } from '@agentenv/core/testing';
import { beforeEach, describe, expect, it } from 'vitest';
import { createSandboxMetrics, DEFAULT_SANDBOX_METRICS_CONFIG, type SandboxMetrics } from './sandbox-metrics.ts';

/** The first sample is taken at once, so that times are round. */
const CONFIG = { ...DEFAULT_SANDBOX_METRICS_CONFIG, firstLookMs: 0 };
const EVER = [0, Number.MAX_SAFE_INTEGER] as const;

/** A guest that answers what it is told to. */
function createGuest() {
  const guest = {
    /** Answers that became samples: the very first only begins the look at the CPUs. */
    get calls() {
      return Math.max(0, guest.answered - 1);
    },
    answered: 0,
    asked: 0,
    cpuUsedPct: 0,
    failure: undefined as Error | undefined,
    /** Answers wait for it. */
    held: undefined as PromiseWithResolvers<void> | undefined,
    async metrics(signal?: AbortSignal): Promise<GuestMetrics> {
      guest.asked++;
      const aborted = Promise.withResolvers<never>();
      signal?.addEventListener('abort', () => aborted.reject(signal.reason));
      if (guest.held !== undefined) await Promise.race([guest.held.promise, aborted.promise]);
      aborted.promise.catch(() => undefined);
      if (guest.failure !== undefined) throw guest.failure;
      guest.answered++;
      return {
        cpuCount: 2,
        cpuUsedPct: guest.cpuUsedPct,
        memTotal: 1_073_741_824,
        memUsed: guest.answered,
        memCache: 4096,
        diskTotal: 17_592_186_044_416,
        diskUsed: 5,
        agentRss: 1,
      };
    },
  };
  return guest;
}

let clock: FakeClock;
let counted: string[];
let metrics: SandboxMetrics;
beforeEach(() => {
  clock = createFakeClock();
  counted = [];
  metrics = create();
});

function create(config = CONFIG): SandboxMetrics {
  return createSandboxMetrics({ clock, log: SILENT_LOG, config, onSample: (result) => counted.push(result) });
}

describe('sandbox metrics', () => {
  it('leave a new sandbox alone for an interval', async () => {
    const guest = createGuest();
    using _ = metrics.attach('i1', guest);
    await clock.advance(4_999);
    expect(guest.calls).toBe(0);
    await clock.advance(1);
    expect(guest.calls).toBe(1);
  });

  it('answer a reader of a new sandbox at once', async () => {
    using _ = metrics.attach('i1', createGuest());
    expect(await metrics.range('i1', ...EVER)).toEqual([
      {
        at: clock.now(),
        cpuCount: 2,
        cpuUsedPct: 0,
        memTotal: 1_073_741_824,
        memUsed: 2,
        memCache: 4096,
        diskTotal: 17_592_186_044_416,
        diskUsed: 5,
      },
    ]);
    expect(await metrics.range('unknown', ...EVER)).toEqual([]);
  });

  it('look at the CPUs for a while of their own before the first sample', async () => {
    metrics = create(DEFAULT_SANDBOX_METRICS_CONFIG);
    const guest = createGuest();
    using _ = metrics.attach('i1', guest);
    const samples = metrics.range('i1', ...EVER);
    // What a guest says first is about the time its template was made in.
    guest.cpuUsedPct = 90;
    await clock.advance(249);
    expect(guest.answered).toBe(1);
    guest.cpuUsedPct = 2;
    await clock.advance(1);
    expect(await samples).toMatchObject([{ cpuUsedPct: 2 }]);
    // From then on one question is one sample.
    await clock.advance(5_000);
    expect(guest.answered).toBe(3);
  });

  it('wake an idle sandbox twice a minute', async () => {
    const guest = createGuest();
    using _ = metrics.attach('i1', guest);
    await clock.advance(5_000 + 10 * 30_000);
    expect(guest.calls).toBe(11);
  });

  it('sample a busy sandbox every five seconds', async () => {
    const guest = createGuest();
    guest.cpuUsedPct = 40;
    using _ = metrics.attach('i1', guest);
    await clock.advance(60_000);
    expect(guest.calls).toBe(12);
    guest.cpuUsedPct = 0.5;
    await clock.advance(5_000 + 2 * 30_000);
    expect(guest.calls).toBe(15);
  });

  it('sample a sandbox that is read every five seconds, and stop when nobody reads any more', async () => {
    const guest = createGuest();
    using _ = metrics.attach('i1', guest);
    await metrics.range('i1', ...EVER);
    await clock.advance(120_000);
    expect(guest.calls).toBe(25);
    await clock.advance(300_000);
    expect(guest.calls).toBeLessThan(37);
  });

  it('answer from memory when the newest sample is young, or only the past is asked for', async () => {
    const guest = createGuest();
    using _ = metrics.attach('i1', guest);
    await clock.advance(5_000);
    const first = clock.now();
    await clock.advance(4_999);
    expect(await metrics.range('i1', ...EVER)).toHaveLength(1);
    await clock.advance(20_000);
    expect(await metrics.range('i1', 0, first)).toHaveLength(1);
    expect(guest.calls).toBe(1);
    expect(await metrics.range('i1', ...EVER)).toHaveLength(2);
    expect(await metrics.range('i1', first + 1, clock.now())).toHaveLength(1);
  });

  it('ask a guest once for readers that come together', async () => {
    const guest = createGuest();
    guest.held = Promise.withResolvers();
    using _ = metrics.attach('i1', guest);
    const readers = [metrics.range('i1', ...EVER), metrics.range('i1', ...EVER), metrics.newest(['i1', 'i1'])];
    await clock.advance(10);
    guest.held.resolve();
    await Promise.all(readers);
    expect(guest.calls).toBe(1);
  });

  it('keep a reader waiting two seconds at most', async () => {
    const guest = createGuest();
    guest.held = Promise.withResolvers();
    using _ = metrics.attach('i1', guest);
    let answer: readonly unknown[] | undefined;
    void metrics.range('i1', ...EVER).then((samples) => {
      answer = samples;
    });
    await clock.advance(1_999);
    expect(answer).toBeUndefined();
    await clock.advance(1);
    expect(answer).toEqual([]);
  });

  it('answer the newest sample of those that have one', async () => {
    const silent = createGuest();
    silent.failure = new PlatformError('sandbox_unavailable', 'gone');
    using _one = metrics.attach('i1', createGuest());
    using _two = metrics.attach('i2', createGuest());
    using _three = metrics.attach('i3', silent);
    await clock.advance(5_000);
    expect([...(await metrics.newest(['i1', 'i3', 'i2', 'unknown', 'i1'])).keys()]).toEqual(['i1', 'i2']);
  });

  it('try a guest that does not answer again in its time', async () => {
    const guest = createGuest();
    guest.failure = new PlatformError('sandbox_unavailable', 'busy');
    using _ = metrics.attach('i1', guest);
    await clock.advance(5_000);
    expect(counted).toEqual(['error']);
    guest.failure = undefined;
    guest.held = Promise.withResolvers();
    await clock.advance(30_000);
    // It never answers: the call is given up, the next one works.
    guest.held = undefined;
    await clock.advance(10_000 + 30_000);
    expect(counted).toEqual(['error', 'error', 'ok']);
  });

  it('ask a few guests at a time', async () => {
    const guests = Array.from({ length: 20 }, createGuest);
    for (const guest of guests) guest.held = Promise.withResolvers();
    for (const [index, guest] of guests.entries()) metrics.attach(`i${index}`, guest);
    await clock.advance(5_000);
    expect(guests.filter(({ asked }) => asked > 0)).toHaveLength(4);
    for (const guest of guests) guest.held?.resolve();
    await clock.advance(0);
    expect(guests.every(({ calls }) => calls === 1)).toBe(true);
    metrics[Symbol.dispose]();
    expect(clock.pendingTimers).toBe(0);
  });

  it('forget a sandbox that is detached, in the middle of an answer too', async () => {
    const guest = createGuest();
    const attached = metrics.attach('i1', guest);
    await clock.advance(5_000);
    guest.held = Promise.withResolvers();
    await clock.advance(30_000);
    attached[Symbol.dispose]();
    expect(await metrics.range('i1', ...EVER)).toEqual([]);
    guest.held.resolve();
    await clock.advance(60_000);
    expect(guest.calls).toBe(1);
    expect(counted).toEqual(['ok']);
    expect(clock.pendingTimers).toBe(0);
  });

  it('never let the time of samples go back with the wall clock', async () => {
    using _ = metrics.attach('i1', createGuest());
    await clock.advance(5_000);
    clock.stepWall(-3_600_000);
    await clock.advance(60_000);
    const samples = await metrics.range('i1', ...EVER);
    expect(samples.length).toBeGreaterThanOrEqual(3);
    const times = samples.map(({ at }) => at);
    expect(new Set(times).size).toBe(times.length);
    expect(times).toEqual(times.toSorted((left, right) => left - right));
  });

  it('stay bounded over a long life', async () => {
    const guest = createGuest();
    guest.cpuUsedPct = 100;
    using _ = metrics.attach('i1', guest);
    const born = clock.now();
    await clock.advance(3_600_000);
    const samples = await metrics.range('i1', ...EVER);
    expect(guest.calls).toBe(720);
    expect(samples.length).toBeLessThanOrEqual(120);
    expect(samples[0]?.at).toBe(born + 5_000);
    expect(samples.at(-1)?.at).toBe(clock.now());
  });
});
