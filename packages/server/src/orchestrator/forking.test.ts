import { PlatformError, type SandboxRecord } from '@agentenv/core';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, LIST_ALL, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';
import type { ForkResult } from './orchestrator.ts';

const failure = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'done',
    (error: unknown) => error,
  );

const SLEEP = {
  ...{ uid: 1000, tag: '', config: new Uint8Array(), pty: false, stdinOpen: false, killInMs: undefined },
  program: { kind: 'sleep', milliseconds: 600_000 },
} as const;

const FORK_TWO = { count: 2, timeoutSeconds: 60 };

/** A running sandbox with one process in it. */
async function source(harness: LifecycleHarness, changes: Partial<typeof CREATE_BASE> = {}): Promise<string> {
  const { id } = await harness.orchestrator.create({ ...CREATE_BASE, ...changes });
  harness.world.machineOf(id).guest.spawn(SLEEP);
  return id;
}

function started(results: readonly ForkResult[]): readonly SandboxRecord[] {
  return results.map((result) => {
    if (result.kind === 'failed') throw result.error;
    return result.record;
  });
}

function pids(harness: LifecycleHarness, id: string): readonly number[] {
  return harness.world.machineOf(id).guest.processes.map(({ pid }) => pid);
}

/** It runs on as before, takes requests, and nothing of the attempt is left. */
async function expectRunsOn(harness: LifecycleHarness, id: string): Promise<void> {
  expect(harness.orchestrator.get(id).state).toBe('running');
  expect(harness.orchestrator.target(id).kind).toBe('ready');
  await harness.world.machineOf(id).guest.running(AbortSignal.timeout(1_000));
  expect(harness.disk.captures.size).toBe(0);
  expect(harness.world.machines.size).toBe(1);
  expect(harness.admission.status().sandboxes).toBe(1);
}

async function expectNothingLeft(harness: LifecycleHarness): Promise<void> {
  for (const { id } of harness.orchestrator.list(LIST_ALL).sandboxes) await harness.orchestrator.kill(id, 'test');
  expect(harness.leftovers()).toEqual({});
  expect(await harness.timersLeft()).toBe(0);
}

describe('fork', () => {
  test('children go on with the processes of their source, each with an identity and a timeout of its own', async () => {
    const harness = await startLifecycle();
    const network = { ...CREATE_BASE.network, allowPublicTraffic: false, denyOut: ['10.0.0.0/8'] };
    const asked = { onTimeout: 'pause', network, metadata: { a: 'b' }, envVars: { C: 'd' } } as const;
    const id = await source(harness, asked);
    await harness.clock.advance(5_000);
    const before = harness.orchestrator.get(id);
    const children = started(await harness.orchestrator.fork(id, { count: 3, timeoutSeconds: 15 }));

    expect(harness.orchestrator.get(id)).toEqual(before);
    const everybody = [before, ...children];
    for (const own of ['id', 'instanceId', 'channelKey'] as const) {
      expect(new Set(everybody.map((record) => record[own])).size).toBe(4);
    }
    for (const token of [harness.orchestrator.accessToken, harness.orchestrator.trafficAccessToken]) {
      expect(new Set(everybody.map(token)).size).toBe(4);
    }
    const now = harness.clock.now();
    for (const child of children) {
      const { templateId, buildId, alias, secure, autoResume, resources, defaultUser } = before;
      expect(child).toMatchObject({ ...asked, templateId, buildId, alias, secure, autoResume, resources, defaultUser });
      expect(child).toMatchObject({ state: 'running', createdAt: now, timeoutSeconds: 15, deadline: now + 15_000 });
      expect(child.capture).toBeUndefined();
      expect(pids(harness, child.id)).toEqual(pids(harness, id));
      expect(harness.world.machineOf(child.id).policy).toEqual(network);
    }
    expect(harness.disk.captures.size).toBe(0);
    expect(harness.stored()).toHaveLength(4);
    expect(harness.counted.filter((name) => name === 'createSucceeded')).toHaveLength(4);
    expect(harness.counted).toContain('forkCaptured');
    expect(harness.log.find('error', '')).toEqual([]);
    await expectNothingLeft(harness);
  });

  test('what source and children do afterwards concerns only them', async () => {
    const harness = await startLifecycle();
    const id = await source(harness);
    const [one, two] = started(await harness.orchestrator.fork(id, FORK_TWO));
    if (one === undefined || two === undefined) throw new Error('no children');
    harness.world.machineOf(one.id).guest.spawn(SLEEP);
    expect([id, one.id, two.id].map((each) => pids(harness, each).length)).toEqual([1, 2, 1]);
    await harness.orchestrator.kill(id, 'test');
    // A child of a source that is gone is paused, resumed and forked like any other.
    await harness.orchestrator.pause(two.id);
    await harness.orchestrator.resume(two.id, 60);
    const [grandchild] = started(await harness.orchestrator.fork(two.id, { count: 1, timeoutSeconds: 60 }));
    expect(pids(harness, grandchild?.id ?? '')).toHaveLength(1);
    await expectNothingLeft(harness);
  });

  test('a full host fails the children it has no room for, in their places, and no other', async () => {
    const harness = await startLifecycle({ limits: { maxSandboxes: 3 } });
    const id = await source(harness);
    const results = await harness.orchestrator.fork(id, { count: 5, timeoutSeconds: 60 });
    expect(results.map(({ kind }) => kind)).toEqual(['started', 'started', 'failed', 'failed', 'failed']);
    expect(results[4]).toMatchObject({ error: { code: 'capacity' } });
    expect(harness.world.machines.size).toBe(3);
    expect(harness.disk.captures.size).toBe(0);
    await expectNothingLeft(harness);
  });

  test('a child that cannot be started is undone and told in its place; its siblings live', async () => {
    const harness = await startLifecycle();
    const id = await source(harness);
    harness.world.faults.next('activate', { kind: 'fail' });
    const results = await harness.orchestrator.fork(id, { count: 3, timeoutSeconds: 60 });
    expect(results.filter(({ kind }) => kind === 'failed')).toMatchObject([{ error: { code: 'create_failed' } }]);
    expect(harness.world.machines.size).toBe(3);
    expect(harness.orchestrator.status()).toMatchObject({ createSuccesses: 3, createFails: 1 });
    await expectNothingLeft(harness);
  });

  test('no more children are started at the same time than the host is told to', async () => {
    const harness = await startLifecycle({ config: { forkConcurrency: 2 } });
    const id = await source(harness);
    const starts = Array.from({ length: 3 }, () => harness.world.faults.next('start', { kind: 'hang' }));
    const forking = harness.orchestrator.fork(id, { count: 3, timeoutSeconds: 60 });
    await Promise.all(starts.slice(0, 2).map(({ hit }) => hit));
    await harness.clock.advance(0);
    expect(harness.stored()).toHaveLength(3);
    for (const start of starts) start.release();
    expect(started(await forking)).toHaveLength(3);
    await expectNothingLeft(harness);
  });

  test.each([0, -1])('a timeout of %i s is refused by name', async (timeoutSeconds) => {
    const harness = await startLifecycle();
    const id = await source(harness);
    await expect(harness.orchestrator.fork(id, { count: 1, timeoutSeconds })).rejects.toMatchObject({
      code: 'invalid_argument',
      message: 'timeout must be greater than 0',
    });
  });

  test('a server that shuts down starts no child any more and pauses the source', async () => {
    const harness = await startLifecycle({ config: { forkConcurrency: 1 } });
    const id = await source(harness);
    const start = harness.world.faults.next('start', { kind: 'hang' });
    const forking = harness.orchestrator.fork(id, FORK_TWO);
    await start.hit;
    await harness.orchestrator[Symbol.asyncDispose]();
    const results = await forking;
    expect(results).toMatchObject([{ error: { code: 'unavailable' } }, { error: { code: 'unavailable' } }]);
    expect(harness.stored()).toMatchObject([{ id, state: 'paused' }]);
    expect(harness.disk.captures.size).toBe(1);
    expect(harness.world.machines.size).toBe(0);
    await expect(harness.orchestrator.fork(id, FORK_TWO)).rejects.toMatchObject({ code: 'unavailable' });
    expect(await harness.timersLeft()).toBe(0);
  });
});

describe('the capture of a fork', () => {
  test('happens while the sandbox takes requests, is shown as running and keeps its timeout', async () => {
    const harness = await startLifecycle();
    const id = await source(harness);
    const { deadline } = harness.orchestrator.get(id);
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const forking = harness.orchestrator.fork(id, FORK_TWO);
    await capture.hit;
    expect(harness.orchestrator.target(id).kind).toBe('ready');
    expect(harness.orchestrator.list({ ...LIST_ALL, states: ['running'] }).sandboxes).toHaveLength(1);
    expect(harness.orchestrator.get(id).deadline).toBe(deadline);
    capture.release();
    await forking;
    await expectNothingLeft(harness);
  });

  test('that finds no space leaves the sandbox running and counts every child that was not made', async () => {
    const harness = await startLifecycle();
    const id = await source(harness);
    harness.world.faults.next('capture', { kind: 'fail', error: new PlatformError('no_space', 'disk full') });
    await expect(harness.orchestrator.fork(id, FORK_TWO)).rejects.toMatchObject({ code: 'no_space' });
    await expectRunsOn(harness, id);
    expect(harness.orchestrator.status()).toMatchObject({ createSuccesses: 1, createFails: 2 });
    expect(harness.counted).toContain('forkCaptureFailed:no_space');
    // And it can be tried again at once.
    expect(started(await harness.orchestrator.fork(id, FORK_TWO))).toHaveLength(2);
    await expectNothingLeft(harness);
  });

  test('that finds no room for its directory leaves the sandbox running', async () => {
    const harness = await startLifecycle({
      wrapCaptures: (captures) => ({
        ...captures,
        allocate: () => Promise.reject(new PlatformError('no_space', 'disk full')),
      }),
    });
    const id = await source(harness);
    await expect(harness.orchestrator.fork(id, FORK_TWO)).rejects.toMatchObject({ code: 'no_space' });
    await expectRunsOn(harness, id);
    await expectNothingLeft(harness);
  });

  test('that takes too long is given up, and the sandbox runs on', async () => {
    const harness = await startLifecycle({ config: { captureTimeoutMs: 10_000 } });
    const id = await source(harness);
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const forking = failure(harness.orchestrator.fork(id, FORK_TWO));
    await capture.hit;
    await harness.clock.advance(10_000);
    expect(await forking).toMatchObject({ code: 'deadline_exceeded' });
    await expectRunsOn(harness, id);
    await expectNothingLeft(harness);
  });

  test('that does not react to its deadline costs the sandbox its life; its directory goes when the backend is done', async () => {
    const stuck = Promise.withResolvers<void>();
    const harness = await startLifecycle({
      config: { captureTimeoutMs: 10_000, killGraceMs: 2_000 },
      wrapBackend: (backend) => ({
        ...backend,
        async restore(snapshot, plan, signal) {
          const running = await backend.restore(snapshot, plan, signal);
          const snapshotLate: typeof running.snapshot = async (directory) => {
            await stuck.promise;
            return await running.snapshot(directory);
          };
          return { ...running, ended: running.ended, snapshot: snapshotLate };
        },
      }),
    });
    const id = await source(harness);
    const forking = failure(harness.orchestrator.fork(id, FORK_TWO));
    await harness.until(() => harness.disk.captures.size === 1);
    await harness.clock.advance(12_000);
    expect(await forking).toMatchObject({ code: 'deadline_exceeded' });
    expect(harness.leftovers()).toEqual({ captures: 1 });
    expect(harness.counted).toContain('ended:capture-lost');
    stuck.resolve();
    await harness.until(() => harness.disk.captures.size === 0);
    expect(await harness.timersLeft()).toBe(0);
  });

  test('during which the guest dies ends the sandbox, and no child is made', async () => {
    const harness = await startLifecycle();
    const id = await source(harness);
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const forking = failure(harness.orchestrator.fork(id, FORK_TWO));
    await capture.hit;
    harness.world.machineOf(id).end('engine-died', 'killed by a test');
    expect(await forking).toMatchObject({ code: 'internal' });
    expect(harness.leftovers()).toEqual({});
    expect(harness.counted).toContain('ended:engine-died');
    expect(await harness.timersLeft()).toBe(0);
  });

  test('whose guest cannot go on ends the sandbox', async () => {
    const harness = await startLifecycle();
    const id = await source(harness);
    harness.world.faults.next('release', { kind: 'fail' });
    expect(await failure(harness.orchestrator.fork(id, FORK_TWO))).toMatchObject({ code: 'internal' });
    expect(harness.leftovers()).toEqual({});
    expect(harness.counted).toContain('forkCaptureFailed:internal');
  });

  test('is cut off by a kill: the fork is told so, no child is made, nothing is left', async () => {
    const harness = await startLifecycle();
    const id = await source(harness);
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const forking = failure(harness.orchestrator.fork(id, FORK_TWO));
    await capture.hit;
    await harness.orchestrator.kill(id, 'test');
    expect(await forking).toMatchObject({ code: 'killed', message: 'sandbox was killed' });
    expect(harness.leftovers()).toEqual({});
    expect(harness.orchestrator.status()).toMatchObject({ createFails: 0 });
    expect(await harness.timersLeft()).toBe(0);
  });

  test('that is complete outlives a kill of its source: the children are made', async () => {
    const harness = await startLifecycle();
    const id = await source(harness);
    const start = harness.world.faults.next('start', { kind: 'hang' });
    const forking = harness.orchestrator.fork(id, FORK_TWO);
    await start.hit;
    expect(harness.orchestrator.get(id).state).toBe('running');
    await harness.orchestrator.kill(id, 'test');
    start.release();
    expect(started(await forking)).toHaveLength(2);
    expect(harness.disk.captures.size).toBe(0);
    await expectNothingLeft(harness);
  });

  test.each(Array.from({ length: 40 }, (_, turn) => turn))(
    'met by a kill after %i turns makes all children or none, and keeps nothing',
    async (turn) => {
      const harness = await startLifecycle();
      const id = await source(harness);
      const forking = failure(harness.orchestrator.fork(id, FORK_TWO));
      for (let passed = 0; passed < turn; passed++) await Promise.resolve();
      await harness.orchestrator.kill(id, 'test');
      const outcome = await forking;
      const children = harness.orchestrator.list(LIST_ALL).sandboxes;
      if (outcome === 'done') expect(children).toHaveLength(2);
      else expect([outcome, children]).toMatchObject([{ code: 'killed' }, []]);
      expect(harness.disk.captures.size).toBe(0);
      await expectNothingLeft(harness);
    },
  );

  test('delays a timeout that fires meanwhile, and no longer', async () => {
    const harness = await startLifecycle();
    const id = await source(harness);
    await harness.orchestrator.setTimeout(id, 5);
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const forking = harness.orchestrator.fork(id, { count: 1, timeoutSeconds: 600 });
    await capture.hit;
    await harness.clock.advance(10_000);
    expect(harness.orchestrator.get(id).state).toBe('forking');
    capture.release();
    const [child] = started(await forking);
    await harness.clock.advance(1_000);
    expect(harness.orchestrator.list(LIST_ALL).sandboxes.map((record) => record.id)).toEqual([child?.id]);
    await expectNothingLeft(harness);
  });

  test('that cannot be removed afterwards is told to the operator and fails nothing', async () => {
    let refusing = true;
    const harness = await startLifecycle({
      wrapCaptures: (captures) => ({
        ...captures,
        remove: (id) => (refusing ? Promise.reject(new Error('the disk says no')) : captures.remove(id)),
      }),
    });
    const id = await source(harness);
    expect(started(await harness.orchestrator.fork(id, FORK_TWO))).toHaveLength(2);
    expect(harness.log.find('warn', 'the capture of a fork could not be removed')).toHaveLength(1);
    refusing = false;
  });
});
