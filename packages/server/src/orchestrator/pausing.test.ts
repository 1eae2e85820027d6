import { PlatformError } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { createFakeWorld } from '@agentenv/runtime';
import { createMemoryDisk } from '@agentenv/storage/testing';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, LIST_ALL, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

const failure = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'done',
    (error: unknown) => error,
  );

async function running(harness: LifecycleHarness): Promise<string> {
  return (await harness.orchestrator.create(CREATE_BASE)).id;
}

/** A client socket that says in `trace` how it ends. */
function clientSocket(trace: string[], note: () => string) {
  return {
    destroy: () => trace.push(`destroyed, ${note()}`),
    resetAndDestroy: () => trace.push(`reset, ${note()}`),
    once: () => undefined,
  };
}

/** It runs on as before: takes requests, has its place and its deadline, nothing of the attempt is left. */
async function expectRunsOn(harness: LifecycleHarness, id: string): Promise<void> {
  expect(harness.orchestrator.get(id).state).toBe('running');
  expect(harness.orchestrator.target(id).kind).toBe('ready');
  expect(harness.world.machineOf(id).guest.processes).toBeDefined();
  await harness.world.machineOf(id).guest.running(AbortSignal.timeout(1_000));
  expect(harness.disk.captures.size).toBe(0);
  expect(harness.stored()).toMatchObject([{ id, state: 'running' }]);
  expect(harness.admission.status().sandboxes).toBe(1);
  // Its deadline is still kept, and ends everything.
  await harness.clock.advance(301_000);
  expect(harness.leftovers()).toEqual({});
  expect(await harness.timersLeft()).toBe(0);
}

describe('pause', () => {
  test('captures, writes the record, and only then stops the engine; the sandbox is shown as paused', async () => {
    const trace: string[] = [];
    const look = { now: () => '' };
    const harness = await startLifecycle({
      intercept: async ({ record }, apply) => {
        if (record?.state === 'paused') trace.push(`record, ${look.now()}`);
        await apply();
      },
    });
    const id = await running(harness);
    look.now = () =>
      `${harness.orchestrator.target(id).kind}, machines ${harness.world.machines.size}, captures ${harness.disk.captures.size}`;
    const target = harness.orchestrator.target(id);
    if (target.kind !== 'ready') throw new Error('not ready');
    target.sockets.add(clientSocket(trace, () => look.now()));
    await harness.clock.advance(5_000);
    await harness.orchestrator.pause(id);
    expect(trace).toEqual([
      'reset, not-proxyable, machines 1, captures 0',
      'record, not-proxyable, machines 1, captures 1',
    ]);
    expect(harness.orchestrator.get(id)).toMatchObject({ state: 'paused', deadline: harness.clock.now() });
    expect(harness.world.machines.size).toBe(0);
    expect(harness.envdEnds).toEqual([id]);
    expect(harness.stored()).toMatchObject([{ id, state: 'paused', capture: [...harness.disk.captures][0] }]);
    expect(harness.counted).toContain('pauseSucceeded');
    const told = harness.sandboxLogs.read(id, { direction: 'forward', limit: 100 }) ?? [];
    expect(told.map(({ message }) => message)).toEqual(
      expect.arrayContaining(['sandbox is being paused', 'sandbox is paused']),
    );
    expect(harness.log.find('error', '')).toEqual([]);
  });

  test('a paused sandbox has no place on the host, no timeout, and is found by its state', async () => {
    const harness = await startLifecycle();
    const id = await running(harness);
    const other = await running(harness);
    await harness.orchestrator.pause(id);
    expect(harness.admission.status()).toMatchObject({ sandboxes: 1, allocatedMemoryMB: 1024 });
    expect(harness.orchestrator.status()).toMatchObject({
      sandboxes: { paused: 1, running: 1 },
      allocated: { vcpus: 2, memoryMB: 1024 },
      pausedAllocated: { vcpus: 2, memoryMB: 1024 },
    });
    const listed = (states: ('running' | 'paused')[]) =>
      harness.orchestrator.list({ ...LIST_ALL, states }).sandboxes.map((record) => record.id);
    expect(listed(['paused'])).toEqual([id]);
    expect(listed(['running'])).toEqual([other]);
    await harness.clock.advance(3_600_000);
    expect(listed(['running', 'paused'])).toEqual([id]);
    await harness.orchestrator.kill(id, 'test');
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });

  test('the host has room again for as many as before', async () => {
    const harness = await startLifecycle({ limits: { maxSandboxes: 1 } });
    const id = await running(harness);
    await expect(harness.orchestrator.create(CREATE_BASE)).rejects.toMatchObject({ code: 'capacity' });
    await harness.orchestrator.pause(id);
    const other = await running(harness);
    await expect(harness.orchestrator.resume(id, 10)).rejects.toMatchObject({ code: 'capacity' });
    expect(harness.orchestrator.get(id).state).toBe('paused');
    await harness.orchestrator.kill(other, 'test');
    await harness.orchestrator.resume(id, 10);
    expect(harness.admission.status().sandboxes).toBe(1);
  });

  test('of many at once one does it and the others share its outcome', async () => {
    const harness = await startLifecycle();
    const id = await running(harness);
    await Promise.all(Array.from({ length: 5 }, () => harness.orchestrator.pause(id)));
    expect(harness.counted.filter((call) => call === 'pauseSucceeded')).toHaveLength(1);
    const other = await running(harness);
    harness.world.faults.next('capture', { kind: 'fail', error: new PlatformError('no_space', 'disk full') });
    const outcomes = await Promise.all(Array.from({ length: 5 }, () => failure(harness.orchestrator.pause(other))));
    for (const outcome of outcomes) expect(outcome).toMatchObject({ code: 'no_space' });
    expect(harness.counted.filter((call) => call.startsWith('pauseFailed'))).toEqual(['pauseFailed:no_space']);
  });

  test('goes on when its caller does not wait for it', async () => {
    const harness = await startLifecycle();
    const id = await running(harness);
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    void harness.orchestrator.pause(id);
    await capture.hit;
    capture.release();
    await harness.until(() => harness.orchestrator.get(id).state === 'paused' && harness.world.machines.size === 0);
  });
});

describe('a pause that fails', () => {
  test.each([
    ['no directory', (harness: LifecycleHarness) => void harness, true],
    [
      'a refused capture',
      (harness: LifecycleHarness) => void harness.world.faults.next('capture', { kind: 'fail' }),
      false,
    ],
    [
      'a capture that takes too long',
      (harness: LifecycleHarness) => void harness.world.faults.next('capture', { kind: 'hang' }),
      false,
    ],
  ])('with %s leaves it running as before', async (_name, prepare, noDirectory) => {
    const harness = await startLifecycle({
      config: { captureTimeoutMs: 1_000 },
      wrapCaptures: (captures) => ({
        ...captures,
        allocate: async (id) => {
          if (noDirectory) throw new PlatformError('no_space', 'no space left for captures on the data disk');
          return await captures.allocate(id);
        },
      }),
    });
    const id = await running(harness);
    prepare(harness);
    const outcome = failure(harness.orchestrator.pause(id));
    await harness.clock.advance(2_000);
    expect(await outcome).toBeInstanceOf(PlatformError);
    expect(harness.counted.filter((call) => call.startsWith('pauseFailed'))).toHaveLength(1);
    await expectRunsOn(harness, id);
  });

  test('because the record cannot be written leaves it running, and the ledger says so', async () => {
    let refuse = true;
    const harness = await startLifecycle({
      intercept: async ({ record }, apply) => {
        await apply();
        if (record?.state === 'paused' && refuse) {
          refuse = false;
          throw new PlatformError('internal', 'the ledger cannot be written');
        }
      },
    });
    const id = await running(harness);
    expect(await failure(harness.orchestrator.pause(id))).toMatchObject({ code: 'internal' });
    await expectRunsOn(harness, id);
  });

  test.each(['full', 'disk'] as const)(
    'that was taken back goes on after a crash, though the ledger has it as paused (%s)',
    async (keeps) => {
      const host = { world: createFakeWorld({ clock: createFakeClock() }), disk: createMemoryDisk() };
      let refuse = false;
      const former = await startLifecycle({
        ...host,
        intercept: async ({ record }, apply) => {
          if (refuse) throw new PlatformError('internal', 'the ledger cannot be written');
          await apply();
          if (record?.state !== 'paused') return;
          refuse = true;
          throw new PlatformError('internal', 'the ledger cannot be written');
        },
      });
      const id = await running(former);
      expect(await failure(former.orchestrator.pause(id, keeps))).toMatchObject({ code: 'internal' });
      expect(former.orchestrator.get(id).state).toBe('running');
      expect(former.stored()).toMatchObject([{ id, state: 'paused' }]);
      const { engine } = host.world.machineOf(id);

      const next = await startLifecycle({ ...host, seed: 2 });
      expect(next.orchestrator.get(id).state).toBe('running');
      expect(host.world.machineOf(id).engine).toBe(engine);
      await expectRunsOn(next, id);
    },
  );

  test('that happened is not undone by a crash before its engine is stopped', async () => {
    const host = { world: createFakeWorld({ clock: createFakeClock() }), disk: createMemoryDisk() };
    const former = await startLifecycle(host);
    const id = await running(former);
    const stop = host.world.faults.next('stop', { kind: 'hang' });
    const pausing = failure(former.orchestrator.pause(id));
    await stop.hit;
    const next = await startLifecycle({ ...host, seed: 2 });
    expect(next.orchestrator.get(id).state).toBe('paused');
    expect(host.world.machines.size).toBe(0);
    stop.release();
    await pausing;
  });

  test('can be tried again', async () => {
    const harness = await startLifecycle();
    const id = await running(harness);
    harness.world.faults.next('capture', { kind: 'fail' });
    expect(await failure(harness.orchestrator.pause(id))).toBeInstanceOf(PlatformError);
    await harness.orchestrator.pause(id);
    expect(harness.orchestrator.get(id).state).toBe('paused');
    expect(harness.disk.captures.size).toBe(1);
  });

  test('with a guest that does not go on ends the sandbox', async () => {
    const harness = await startLifecycle({
      intercept: async ({ record }, apply) => {
        if (record?.state === 'paused') throw new PlatformError('no_space', 'no space left for the ledger');
        await apply();
      },
    });
    const id = await running(harness);
    harness.world.faults.next('release', { kind: 'fail' });
    expect(await failure(harness.orchestrator.pause(id))).toMatchObject({ code: 'no_space' });
    expect(harness.counted).toContain('ended:capture-lost');
    expect(harness.leftovers()).toEqual({});
  });

  test('because the engine dies in the middle ends the sandbox with that reason', async () => {
    const harness = await startLifecycle();
    const id = await running(harness);
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const pausing = failure(harness.orchestrator.pause(id));
    await capture.hit;
    harness.world.machineOf(id).end('engine-died', 'killed by the test');
    expect(await pausing).toMatchObject({ code: 'internal' });
    expect(harness.counted).toContain('ended:engine-died');
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });

  test('to stop the engine is a pause: it is tried again, and nothing runs twice', async () => {
    const harness = await startLifecycle();
    const id = await running(harness);
    for (let attempt = 0; attempt < 3; attempt++) harness.world.faults.next('stop', { kind: 'fail' });
    await harness.orchestrator.pause(id);
    expect(harness.orchestrator.get(id).state).toBe('paused');
    expect(harness.world.machines.size).toBe(1);
    expect(await failure(harness.orchestrator.resume(id, 10))).toMatchObject({ code: 'unavailable' });
    expect(harness.world.machines.size).toBe(1);
    await harness.clock.advance(2_000);
    expect(harness.world.machines.size).toBe(0);
    await harness.orchestrator.resume(id, 10);
    expect(harness.world.machines.size).toBe(1);
    await harness.orchestrator.kill(id, 'test');
    expect(harness.leftovers()).toEqual({});
  });

  test('an engine that dies once the pause is on disk costs nothing', async () => {
    const harness: LifecycleHarness = await startLifecycle({
      intercept: async ({ record }, apply) => {
        await apply();
        if (record?.state === 'paused') harness.world.machineOf(record.id).end('engine-died', 'killed by the test');
      },
    });
    const id = await running(harness);
    await harness.orchestrator.pause(id);
    expect(harness.orchestrator.get(id).state).toBe('paused');
    await harness.orchestrator.resume(id, 10);
    expect(harness.orchestrator.target(id).kind).toBe('ready');
  });
});

describe('a kill while it is being paused', () => {
  test.each(['capture', 'record', 'stop'] as const)('in the middle of %s leaves nothing', async (stage) => {
    const reached = Promise.withResolvers<void>();
    const harness = await startLifecycle({
      intercept: async ({ record }, apply) => {
        if (stage === 'record' && record?.state === 'paused') {
          reached.resolve();
          await new Promise<never>(() => {});
        }
        await apply();
      },
    });
    const id = await running(harness);
    if (stage !== 'record')
      void harness.world.faults.next(stage, { kind: 'slow', milliseconds: 5_000 }).hit.then(reached.resolve);
    const pausing = failure(harness.orchestrator.pause(id));
    await reached.promise;
    const killing = harness.orchestrator.kill(id, 'test');
    expect(harness.orchestrator.list(LIST_ALL).sandboxes).toEqual([]);
    expect(await pausing).toMatchObject({ code: 'killed', message: 'sandbox was killed' });
    await harness.clock.advance(10_000);
    await killing;
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });
});
