import { DEFAULT_NETWORK_POLICY, type NetworkPolicy, PlatformError, SILENT_LOG } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { SlotPool } from './slot-pool.ts';

const OFF: NetworkPolicy = { ...DEFAULT_NETWORK_POLICY, allowInternetAccess: false };

/** A pool over slots that exist only as numbers; tests decide when a creation ends and which call fails. */
function open({ low = 0, high = 0, maxSlots = 100, hold = false, broken = false, left = [] as number[] } = {}) {
  const clock = createFakeClock();
  const existing = new Set<number>(left);
  const failing = { prepare: broken, destroy: false, policy: false };
  const held: (() => void)[] = [];
  const policies: NetworkPolicy[] = [];
  const renewed: NetworkPolicy[] = [];
  let creating = 0;
  let mostCreating = 0;
  let attempts = 0;
  let maintained = 0;
  let closed: readonly number[] | undefined;
  const pool = new SlotPool({
    clock,
    log: SILENT_LOG,
    pool: { low, high },
    maxSlots,
    left: left.map((index) => ({ index, path: `/netns/${index}`, uid: 1_000 + index })),
    async prepare(index) {
      attempts++;
      mostCreating = Math.max(mostCreating, ++creating);
      existing.add(index);
      if (hold) await new Promise<void>((resolve) => held.push(resolve));
      creating--;
      if (failing.prepare) throw new Error('no more namespaces');
      return { index, path: `/netns/${index}`, uid: 1_000 + index };
    },
    async destroy(index) {
      if (failing.destroy) throw new Error('busy');
      existing.delete(index);
    },
    async applyPolicy(_slot, policy) {
      if (failing.policy) throw new PlatformError('internal', 'refused');
      policies.push(policy);
    },
    async renew(_slot, policy) {
      if (failing.policy) throw new PlatformError('internal', 'refused');
      renewed.push(policy);
    },
    hostInteractionIp: (index) => `10.11.0.${index}`,
    async maintain() {
      maintained++;
    },
    async close(abandoned) {
      closed = abandoned.map(({ index }) => index);
    },
  });
  return {
    clock,
    pool,
    existing,
    failing,
    policies,
    renewed,
    release: () => held.shift()?.(),
    facts: () => ({ attempts, mostCreating, maintained, closed }),
  };
}

describe('slot pool', () => {
  test('fills to the high mark at once and refills only below the low one', async () => {
    const { clock, pool, facts } = open({ low: 2, high: 4 });
    await clock.advance(0);
    expect(pool.status()).toEqual({ ready: 4, inUse: 0 });
    await pool.acquire(DEFAULT_NETWORK_POLICY);
    await pool.acquire(DEFAULT_NETWORK_POLICY);
    await clock.advance(0);
    expect(pool.status()).toEqual({ ready: 2, inUse: 2 });
    await pool.acquire(DEFAULT_NETWORK_POLICY);
    await clock.advance(0);
    expect(pool.status()).toEqual({ ready: 4, inUse: 3 });
    expect(facts().attempts).toBe(7);
    await pool[Symbol.asyncDispose]();
  });

  test('serves an empty pool on demand, a few creations at a time', async () => {
    const { clock, pool, release, facts } = open({ hold: true });
    const waiting = Promise.all(Array.from({ length: 10 }, () => pool.acquire(DEFAULT_NETWORK_POLICY)));
    for (let step = 0; step < 10; step++) {
      await clock.advance(0);
      release();
    }
    const slots = await waiting;
    expect(new Set(slots.map(({ index }) => index)).size).toBe(10);
    expect(facts()).toMatchObject({ attempts: 10, mostCreating: 3 });
    await pool[Symbol.asyncDispose]();
  });

  test('spends no transaction on the default policy', async () => {
    const { pool, policies } = open();
    await pool.acquire(DEFAULT_NETWORK_POLICY);
    await pool.acquire({ ...DEFAULT_NETWORK_POLICY, allowInternetAccess: true });
    expect(policies).toEqual([]);
    await pool.acquire(OFF);
    expect(policies).toEqual([OFF]);
    await pool[Symbol.asyncDispose]();
  });

  test('a policy that cannot be applied costs the caller nothing but the error', async () => {
    const { pool, existing, failing } = open();
    failing.policy = true;
    await expect(pool.acquire(OFF)).rejects.toMatchObject({ code: 'internal' });
    expect(pool.status()).toEqual({ ready: 0, inUse: 0 });
    expect(existing.size).toBe(0);
    await pool[Symbol.asyncDispose]();
  });

  test('a failed creation is not repeated until the next maintenance, except for those who wait', async () => {
    const { clock, pool, existing, failing, facts } = open({ low: 1, high: 1, broken: true });
    await clock.advance(20_000);
    expect(facts().attempts).toBe(1);
    await expect(pool.acquire(DEFAULT_NETWORK_POLICY)).rejects.toMatchObject({ code: 'create_failed' });
    expect(facts().attempts).toBe(2);
    expect(existing.size).toBe(0);
    failing.prepare = false;
    await clock.advance(20_000);
    expect(pool.status()).toEqual({ ready: 1, inUse: 0 });
    expect(facts().maintained).toBe(1);
    await pool[Symbol.asyncDispose]();
  });

  test('numbers rest: a released one is used again only when all others were', async () => {
    const { pool } = open({ maxSlots: 3 });
    const first = await pool.acquire(DEFAULT_NETWORK_POLICY);
    await first.release();
    const order: number[] = [];
    for (let step = 0; step < 4; step++) {
      const slot = await pool.acquire(DEFAULT_NETWORK_POLICY);
      order.push(slot.index);
      await slot.release();
    }
    expect([first.index, ...order]).toEqual([1, 2, 3, 1, 2]);
    await pool[Symbol.asyncDispose]();
  });

  test('more than there are is a capacity error that says how many', async () => {
    const { pool } = open({ maxSlots: 2 });
    await pool.acquire(DEFAULT_NETWORK_POLICY);
    const second = await pool.acquire(DEFAULT_NETWORK_POLICY);
    await expect(pool.acquire(DEFAULT_NETWORK_POLICY)).rejects.toMatchObject({
      code: 'capacity',
      message: 'all 2 network slots are in use',
      retryAfterSeconds: 5,
    });
    await second.release();
    expect((await pool.acquire(DEFAULT_NETWORK_POLICY)).index).toBe(2);
    await pool[Symbol.asyncDispose]();
  });

  test('a release that fails keeps the slot and may be tried again', async () => {
    const { pool, failing, existing } = open();
    const slot = await pool.acquire(DEFAULT_NETWORK_POLICY);
    failing.destroy = true;
    await expect(slot.release()).rejects.toMatchObject({ code: 'internal' });
    expect(pool.status().inUse).toBe(1);
    failing.destroy = false;
    await Promise.all([slot.release(), slot.release()]);
    expect(pool.status().inUse).toBe(0);
    expect(existing.size).toBe(0);
    await pool[Symbol.asyncDispose]();
  });

  test('an aborted wait gives its turn away and takes nothing', async () => {
    const { clock, pool, release } = open({ hold: true });
    const controller = new AbortController();
    const aborted = pool.acquire(DEFAULT_NETWORK_POLICY, controller.signal);
    const patient = pool.acquire(DEFAULT_NETWORK_POLICY);
    controller.abort();
    await expect(aborted).rejects.toThrow();
    await clock.advance(0);
    release();
    release();
    expect((await patient).index).toBe(1);
    await clock.advance(0);
    expect(pool.status().inUse).toBe(1);
    const end = pool[Symbol.asyncDispose]();
    release();
    await end;
  });

  test('shutting down fails those who wait, waits for what is on its way, and leaves nothing', async () => {
    const { clock, pool, existing, release, facts } = open({ hold: true });
    const waiting = pool.acquire(DEFAULT_NETWORK_POLICY);
    await clock.advance(0);
    const end = pool[Symbol.asyncDispose]();
    await expect(waiting).rejects.toMatchObject({ code: 'unavailable' });
    await expect(pool.acquire(DEFAULT_NETWORK_POLICY)).rejects.toMatchObject({ code: 'unavailable' });
    expect(facts().closed).toBeUndefined();
    release();
    await end;
    expect(existing.size).toBe(0);
    expect(facts().closed).toEqual([]);
    expect(clock.pendingTimers).toBe(0);
  });

  test('slots of a former server are adopted or removed, and no number is used twice', async () => {
    const { clock, pool, existing, policies, renewed } = open({ left: [1, 3, 200] });
    await expect(pool.adopt(2, DEFAULT_NETWORK_POLICY)).rejects.toMatchObject({ code: 'not_found' });
    // The network has become smaller than that number.
    await expect(pool.adopt(200, DEFAULT_NETWORK_POLICY)).rejects.toMatchObject({ code: 'not_found' });
    const adopted = await pool.adopt(3, OFF);
    expect({ policies, renewed }).toEqual({ policies: [], renewed: [OFF] });
    expect(adopted).toMatchObject({ index: 3, networkNamespacePath: '/netns/3', uid: 1_003 });
    await expect(pool.adopt(3, OFF)).rejects.toMatchObject({ code: 'not_found' });
    expect((await pool.acquire(DEFAULT_NETWORK_POLICY)).index).toBe(2);
    expect(await pool.removeLeftovers()).toBe(2);
    expect([...existing]).toEqual([3, 2]);
    await adopted.release();
    expect((await pool.acquire(DEFAULT_NETWORK_POLICY)).index).toBe(4);
    await clock.advance(0);
    await pool[Symbol.asyncDispose]();
    expect(existing.size).toBe(0);
  });

  test('an adoption whose policy is refused can be tried again', async () => {
    const { pool, failing } = open({ left: [1] });
    failing.policy = true;
    await expect(pool.adopt(1, OFF)).rejects.toMatchObject({ code: 'internal' });
    failing.policy = false;
    expect((await pool.adopt(1, OFF)).index).toBe(1);
    await pool[Symbol.asyncDispose]();
  });

  test('ended before it was asked to remove them, it leaves those of a former server', async () => {
    const { pool, existing, facts } = open({ low: 1, high: 1, left: [1, 2] });
    await pool[Symbol.asyncDispose]();
    expect([...existing]).toEqual([1, 2]);
    expect(facts().closed).toEqual([1, 2]);
  });
});
