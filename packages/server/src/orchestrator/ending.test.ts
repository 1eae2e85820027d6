import { PlatformError } from '@agentenv/core';
import type { EnvdOptions } from '@agentenv/envd';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, LIST_ALL, startLifecycle } from '../testing/lifecycle-harness.ts';

const hang = () => new Promise<never>(() => {});

/** A client socket that notes in `trace` how it ends. */
function clientSocket(trace: string[]) {
  const listeners: (() => void)[] = [];
  const close = (how: string): void => {
    trace.push(how);
    for (const listener of listeners.splice(0)) listener();
  };
  return {
    destroy: () => close('socket destroyed'),
    resetAndDestroy: () => close('socket reset'),
    once: (_event: 'close', listener: () => void) => listeners.push(listener),
  };
}

describe('kill', () => {
  test('vanishes from list and data plane first, then resets sockets, ends the guest API, the engine, the record', async () => {
    const trace: string[] = [];
    const look: { now: () => string } = { now: () => '' };
    const harness = await startLifecycle({
      intercept: async ({ kind }, apply) => {
        if (kind === 'delete') trace.push(`record removed, ${look.now()}`);
        await apply();
      },
      createEnvd: (_options: EnvdOptions) => ({
        handle() {},
        async [Symbol.asyncDispose]() {
          trace.push(`guest API ended, ${look.now()}`);
        },
      }),
    });
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    const target = harness.orchestrator.target(id);
    if (target.kind !== 'ready') throw new Error('not ready');
    const socket = clientSocket(trace);
    target.sockets.add({
      ...socket,
      resetAndDestroy() {
        trace.push(`data plane ${harness.orchestrator.target(id).kind}`);
        trace.push(`listed ${harness.orchestrator.list(LIST_ALL).sandboxes.length}`);
        socket.resetAndDestroy();
      },
    } as typeof socket);
    look.now = () => `machines ${harness.world.machines.size}`;
    await harness.orchestrator.kill(id, 'test');
    expect(trace).toEqual([
      'data plane not-found',
      'listed 0',
      'socket reset',
      'guest API ended, machines 1',
      'record removed, machines 0',
    ]);
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
    // A socket that comes too late is ended as well.
    target.sockets.add(clientSocket(trace));
    expect(trace.at(-1)).toBe('socket reset');
  });

  test('the first of two succeeds, a concurrent one joins it, a later one is not found', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    await Promise.all([
      harness.orchestrator.kill(id, 'one'),
      harness.orchestrator.kill(id, 'two'),
      harness.orchestrator.kill(id, 'three'),
    ]);
    await expect(harness.orchestrator.kill(id, 'late')).rejects.toMatchObject({ code: 'not_found' });
    expect(harness.counted.filter((call) => call.startsWith('ended'))).toEqual(['ended:deleted']);
    expect(harness.envdEnds).toEqual([id]);
  });

  test('while it is under way the sandbox does not exist for anything else', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    const stop = harness.world.faults.next('stop', { kind: 'hang' });
    const killing = harness.orchestrator.kill(id, 'test');
    await stop.hit;
    expect(() => harness.orchestrator.get(id)).toThrow(`sandbox '${id}' not found`);
    expect(harness.orchestrator.target(id)).toEqual({ kind: 'not-found' });
    expect(harness.orchestrator.list(LIST_ALL)).toEqual({ sandboxes: [], nextToken: undefined, totalRunning: 0 });
    for (const operation of [
      harness.orchestrator.connect(id, 10),
      harness.orchestrator.setTimeout(id, 10),
      harness.orchestrator.setTimeout(id, 0),
      harness.orchestrator.refresh(id, 10),
    ]) {
      await expect(operation).rejects.toMatchObject({ code: 'not_found' });
    }
    // Its place on the host is taken until its engine is gone.
    expect(harness.admission.status().sandboxes).toBe(1);
    stop.release();
    await killing;
    expect(harness.leftovers()).toEqual({});
  });

  test('never waits for a running step, which fails with `sandbox was killed`', async () => {
    const harness = await startLifecycle({
      intercept: ({ kind, record }, apply) => (kind === 'put' && record?.timeoutSeconds === 77 ? hang() : apply()),
    });
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    const stuck = harness.orchestrator.setTimeout(id, 77).catch((error: unknown) => error);
    const waiting = harness.orchestrator.connect(id, 1_000).catch((error: unknown) => error);
    await harness.clock.advance(0);
    await harness.orchestrator.kill(id, 'test');
    for (const outcome of [stuck, waiting]) {
      expect(await outcome).toMatchObject({ code: 'killed', message: 'sandbox was killed' });
    }
    expect(harness.clock.monotonic()).toBe(0);
    expect(harness.leftovers()).toEqual({});
  });

  test('a guest API that does not end delays the engine by one second at most', async () => {
    const harness = await startLifecycle({
      createEnvd: () => ({ handle() {}, [Symbol.asyncDispose]: hang }),
    });
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    const killing = harness.orchestrator.kill(id, 'test');
    await harness.clock.advance(1_000);
    await killing;
    expect(harness.leftovers()).toEqual({});
    expect(harness.log.find('warn', 'guest API')).toHaveLength(1);
  });

  test('an engine that cannot be stopped fails the kill, keeps its place and its record, and the next kill succeeds', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    harness.world.faults.next('stop', { kind: 'fail', error: new PlatformError('internal', 'kill -9 had no effect') });
    await expect(harness.orchestrator.kill(id, 'test')).rejects.toMatchObject({
      code: 'internal',
      message: expect.stringContaining('kill -9 had no effect'),
    });
    expect(harness.orchestrator.list(LIST_ALL).sandboxes).toEqual([]);
    expect(harness.admission.status().sandboxes).toBe(1);
    expect(harness.stored()).toHaveLength(1);
    expect(harness.counted).toContain('releaseFailed:engine');
    await harness.orchestrator.kill(id, 'again');
    expect(harness.leftovers()).toEqual({});
    expect(harness.counted.filter((call) => call.startsWith('ended'))).toEqual(['ended:deleted']);
    expect(harness.envdEnds).toEqual([id]);
    expect(await harness.timersLeft()).toBe(0);
  });

  test('an engine that could not be stopped is tried again without being asked', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    for (let attempt = 0; attempt < 3; attempt++) harness.world.faults.next('stop', { kind: 'fail' });
    await expect(harness.orchestrator.kill(id, 'test')).rejects.toMatchObject({ code: 'internal' });
    await harness.clock.advance(1_000);
    expect(harness.world.machines.size).toBe(1);
    await harness.clock.advance(2_000 + 4_000);
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });

  test('an engine that never answers its stop fails the kill after its deadline', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    const stop = harness.world.faults.next('stop', { kind: 'hang' });
    const outcome = harness.orchestrator.kill(id, 'test').catch((error: unknown) => error);
    await harness.clock.advance(10_000);
    expect(await outcome).toMatchObject({ code: 'internal' });
    stop.release();
    await harness.clock.advance(1_000);
    expect(harness.leftovers()).toEqual({});
  });

  test('a ledger that refuses the removal does not fail the kill; it is repeated until it succeeds', async () => {
    let refuse = true;
    const harness = await startLifecycle({
      intercept: async ({ kind }, apply) => {
        if (kind === 'delete' && refuse) throw new PlatformError('no_space', 'disk full');
        await apply();
      },
    });
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    await harness.orchestrator.kill(id, 'test');
    expect(harness.leftovers()).toEqual({ records: 1 });
    await harness.clock.advance(1_000);
    expect(harness.leftovers()).toEqual({ records: 1 });
    refuse = false;
    await harness.clock.advance(2_000);
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });
});

describe('a runtime that ends without being asked', () => {
  test.each(['engine-died', 'guest-panic', 'guest-poweroff', 'guest-reboot', 'disk-error', 'channel-lost'] as const)(
    '%s ends exactly that sandbox, with the reason logged and counted',
    async (reason) => {
      const harness = await startLifecycle();
      const [victim, neighbour] = await Promise.all([
        harness.orchestrator.create(CREATE_BASE),
        harness.orchestrator.create(CREATE_BASE),
      ]);
      const trace: string[] = [];
      const target = harness.orchestrator.target(victim.id);
      if (target.kind === 'ready') target.sockets.add(clientSocket(trace));
      harness.world.machineOf(victim.id).end(reason, 'as the test wants it');
      await harness.until(
        () => harness.orchestrator.status().sandboxes.killing === 0 && harness.world.machines.size === 1,
      );
      await harness.clock.advance(0);
      expect(harness.clock.monotonic()).toBe(0);
      expect(trace).toEqual(['socket reset']);
      expect(() => harness.orchestrator.get(victim.id)).toThrow('not found');
      expect(harness.orchestrator.target(neighbour.id).kind).toBe('ready');
      expect(harness.stored().map(({ id }) => id)).toEqual([neighbour.id]);
      expect(harness.admission.status().sandboxes).toBe(1);
      expect(harness.counted).toContain(`ended:${reason}`);
      expect(harness.log.find('info', 'sandbox ends').map(({ fields }) => fields)).toMatchObject([
        { sandboxId: victim.id, reason, detail: 'as the test wants it' },
      ]);
    },
  );

  test('the end of a sandbox that is being killed anyway changes nothing', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    const stop = harness.world.faults.next('stop', { kind: 'hang' });
    const killing = harness.orchestrator.kill(id, 'test');
    await stop.hit;
    harness.world.machineOf(id).end('engine-died', 'at the same moment');
    await harness.clock.advance(0);
    stop.release();
    await killing;
    expect(harness.counted.filter((call) => call.startsWith('ended'))).toEqual(['ended:deleted']);
    expect(harness.leftovers()).toEqual({});
  });

  test('a whole host of them dying at once is cleaned up', async () => {
    const harness = await startLifecycle();
    await Promise.all(Array.from({ length: 20 }, () => harness.orchestrator.create(CREATE_BASE)));
    for (const machine of [...harness.world.machines.values()]) machine.end('engine-died', 'power cut');
    await harness.until(() => Object.keys(harness.leftovers()).length === 0);
    expect(harness.counted.filter((call) => call === 'ended:engine-died')).toHaveLength(20);
    expect(await harness.timersLeft()).toBe(0);
  });
});
