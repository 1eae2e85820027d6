import { SILENT_LOG } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { createPool, type Pool, type PoolEntry, type PoolOptions } from './pool.ts';

interface TestEntry extends PoolEntry {
  readonly id: number;
  readonly lose: () => void;
}

function world(
  overrides: Partial<PoolOptions<TestEntry>> & { readonly held?: boolean; readonly failing?: number } = {},
) {
  const clock = createFakeClock();
  const entries: TestEntry[] = [];
  const released: number[] = [];
  const gates: PromiseWithResolvers<void>[] = [];
  let { held = false, failing = 0 } = overrides;
  let started = 0;

  async function create(signal: AbortSignal): Promise<TestEntry> {
    const id = started++;
    if (held) {
      const gate = Promise.withResolvers<void>();
      gates.push(gate);
      signal.addEventListener('abort', () => gate.reject(signal.reason));
      await gate.promise;
    }
    if (failing > 0) {
      failing--;
      throw new Error('no slot');
    }
    const lost = Promise.withResolvers<void>();
    const entry: TestEntry = {
      id,
      lost: lost.promise,
      lose: lost.resolve,
      async [Symbol.asyncDispose]() {
        released.push(id);
      },
    };
    entries.push(entry);
    return entry;
  }

  const pool: Pool<TestEntry> = createPool({
    low: 2,
    high: 4,
    concurrency: 1,
    demandWindowMs: 60_000,
    retryMs: 100,
    settleMs: 0,
    create,
    clock,
    log: SILENT_LOG,
    ...overrides,
  });
  return {
    clock,
    pool,
    entries,
    released,
    gates,
    started: () => started,
    hold() {
      held = true;
    },
  };
}

describe('pool', () => {
  test('fills to the low watermark and hands out the oldest entry first', async () => {
    const { pool, clock } = world();
    await clock.advance(0);
    expect(pool.status()).toEqual({ ready: 2, target: 2, hits: 0, misses: 0 });
    expect(pool.claim()?.id).toBe(0);
    await clock.advance(0);
    expect(pool.status()).toEqual({ ready: 2, target: 2, hits: 1, misses: 0 });
  });

  test('makes no more entries at once than its concurrency', async () => {
    const { pool, clock, gates } = world({ low: 4, concurrency: 2, held: true });
    await clock.advance(0);
    expect(gates).toHaveLength(2);
    gates[0]?.resolve();
    await clock.advance(0);
    expect(gates).toHaveLength(3);
    expect(pool.status().ready).toBe(1);
  });

  test('grows with demand up to the high watermark and shrinks when the demand is over', async () => {
    const { pool, clock, released } = world();
    await clock.advance(0);
    for (let i = 0; i < 6; i++) {
      pool.claim();
      await clock.advance(10);
    }
    expect(pool.status()).toMatchObject({ ready: 4, target: 4 });
    await clock.advance(61_000);
    expect(pool.status()).toMatchObject({ ready: 2, target: 2 });
    expect(released).toHaveLength(2);
    expect(clock.pendingTimers).toBe(0);
  });

  test('starts nothing while a foreground request is running', async () => {
    const { pool, clock, started } = world();
    await clock.advance(0);
    const first = pool.foreground();
    const second = pool.foreground();
    pool.claim();
    pool.claim();
    expect(pool.claim()).toBeUndefined();
    await clock.advance(1_000);
    expect(started()).toBe(2);
    first[Symbol.dispose]();
    first[Symbol.dispose]();
    await clock.advance(0);
    expect(started()).toBe(2);
    second[Symbol.dispose]();
    await clock.advance(0);
    expect(pool.status()).toEqual({ ready: 3, target: 3, hits: 2, misses: 1 });
  });

  test('waits until callers are quiet before it makes anything', async () => {
    const { pool, clock, started } = world({ settleMs: 500 });
    await clock.advance(0);
    expect(started()).toBe(2);
    const foreground = pool.foreground();
    pool.claim();
    await clock.advance(400);
    foreground[Symbol.dispose]();
    await clock.advance(499);
    expect(started()).toBe(2);
    await clock.advance(1);
    expect(started()).toBe(3);
  });

  test('releases and replaces an entry that is lost while it waits', async () => {
    const { pool, clock, entries, released } = world({ low: 1 });
    await clock.advance(0);
    entries[0]?.lose();
    await clock.advance(0);
    expect(pool.status().ready).toBe(0);
    expect(released).toEqual([0]);
    await clock.advance(100);
    expect(pool.claim()?.id).toBe(1);
  });

  test('leaves an entry alone that is lost after it was claimed', async () => {
    const { pool, clock, released } = world({ low: 1 });
    await clock.advance(0);
    pool.claim()?.lose();
    await clock.advance(1_000);
    expect(released).toEqual([]);
    expect(pool.status().ready).toBe(1);
  });

  test('waits longer after each failure and recovers', async () => {
    const { pool, clock, started } = world({ low: 1, failing: 3 });
    await clock.advance(0);
    await clock.advance(99);
    expect(started()).toBe(1);
    await clock.advance(1);
    expect(started()).toBe(2);
    pool.claim();
    await clock.advance(199);
    expect(started()).toBe(2);
    await clock.advance(1);
    await clock.advance(400);
    expect(started()).toBe(4);
    expect(pool.status().ready).toBe(1);
  });

  test('gives everything up under memory pressure and refills afterwards', async () => {
    const { pool, clock, released } = world();
    await clock.advance(0);
    await pool.suspend();
    expect(pool.status()).toMatchObject({ ready: 0, target: 0 });
    expect(released).toEqual([0, 1]);
    await clock.advance(120_000);
    expect(pool.status().ready).toBe(0);
    pool.resume();
    await clock.advance(0);
    expect(pool.status().ready).toBe(2);
  });

  test('closing aborts what is being made, releases what is ready and starts nothing any more', async () => {
    const { pool, clock, released, gates, started, hold } = world();
    await clock.advance(0);
    hold();
    pool.claim();
    await clock.advance(0);
    expect(gates).toHaveLength(1);
    await pool[Symbol.asyncDispose]();
    expect(released).toEqual([1]);
    expect(clock.pendingTimers).toBe(0);
    pool.claim();
    await clock.advance(1_000);
    expect(started()).toBe(3);
  });
});
