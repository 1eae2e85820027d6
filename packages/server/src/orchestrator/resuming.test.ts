import { PlatformError } from '@agentenv/core';
import type { EnvdOptions } from '@agentenv/envd';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, LIST_ALL, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

const failure = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'done',
    (error: unknown) => error,
  );

async function paused(harness: LifecycleHarness): Promise<string> {
  const { id } = await harness.orchestrator.create({
    ...CREATE_BASE,
    metadata: { name: 'kept' },
    envVars: { COLOUR: 'blue' },
    network: { ...CREATE_BASE.network, allowInternetAccess: false },
  });
  await harness.orchestrator.pause(id);
  return id;
}

async function expectPaused(harness: LifecycleHarness, id: string): Promise<void> {
  expect(harness.orchestrator.get(id).state).toBe('paused');
  expect(harness.orchestrator.target(id).kind).toBe('not-proxyable');
  expect(harness.world.machines.size).toBe(0);
  expect(harness.admission.status().sandboxes).toBe(0);
  expect(harness.disk.captures).toEqual(new Set([harness.orchestrator.get(id).capture]));
  await harness.orchestrator.resume(id, 10);
  expect(harness.orchestrator.target(id).kind).toBe('ready');
}

describe('resume', () => {
  test('is the same sandbox in a new generation: id, tokens, variables, policy, files, processes', async () => {
    const services: EnvdOptions[] = [];
    const harness = await startLifecycle({
      createEnvd: (options) => {
        services.push(options);
        return { handle() {}, async [Symbol.asyncDispose]() {} };
      },
    });
    const { id } = await harness.orchestrator.create({
      ...CREATE_BASE,
      metadata: { name: 'kept' },
      envVars: { COLOUR: 'blue' },
      network: { ...CREATE_BASE.network, allowInternetAccess: false, allowPublicTraffic: false },
    });
    const before = harness.orchestrator.get(id);
    const first = harness.world.machineOf(id);
    first.guest.files.write({
      ...{ path: '/etc/hosts', uid: 0, gid: 0, mode: 0o644, xattrs: new Map() },
      content: Buffer.from('127.0.0.1 mine\n'),
    });
    const { pid } = first.guest.spawn({
      ...{ uid: 1000, tag: '', config: new Uint8Array(), pty: false, stdinOpen: false, killInMs: undefined },
      program: { kind: 'sleep', milliseconds: 600_000 },
    });
    await harness.orchestrator.pause(id);
    await harness.clock.advance(60_000);
    const after = await harness.orchestrator.resume(id, 77);
    const { instanceId, channelKey, runtime, ...same } = before;
    expect(after).toMatchObject({
      ...same,
      capture: expect.any(String),
      timeoutSeconds: 77,
      deadline: harness.clock.now() + 77_000,
    });
    expect(after.instanceId).not.toBe(instanceId);
    expect(after.channelKey).not.toBe(channelKey);
    expect(after.runtime).not.toEqual(runtime);
    expect(harness.orchestrator.accessToken(after)).toBe(harness.orchestrator.accessToken(before));
    expect(harness.orchestrator.trafficAccessToken(after)).toBe(harness.orchestrator.trafficAccessToken(before));

    const machine = harness.world.machineOf(id);
    expect(machine.instanceId).toBe(after.instanceId);
    expect(machine.policy).toEqual(before.network);
    expect(machine.guest.files.text('/etc/hosts')).toBe('127.0.0.1 mine\n');
    expect(machine.guest.processes.map((process) => process.pid)).toEqual([pid]);
    expect(services).toHaveLength(2);
    const { agent: _first, ...options } = services[0] ?? {};
    expect(services[1]).toMatchObject({ ...options, journal: expect.any(Function) });
    expect(harness.stored()).toMatchObject([{ id, state: 'running', instanceId: after.instanceId }]);
    await harness.clock.advance(78_000);
    expect(harness.leftovers()).toEqual({});
    expect(harness.counted).toContain('ended:expired');
    expect(await harness.timersLeft()).toBe(0);
  });

  test('the record of the new generation is on disk before there is an engine', async () => {
    const trace: string[] = [];
    const harness: LifecycleHarness = await startLifecycle({
      intercept: async ({ record }, apply) => {
        trace.push(
          `${record?.state}, machines ${[...harness.world.machines.keys()].filter((id) => id === record?.instanceId).length}`,
        );
        await apply();
      },
    });
    const id = await paused(harness);
    trace.length = 0;
    await harness.orchestrator.resume(id, 10);
    expect(trace).toEqual(['resuming, machines 0', 'running, machines 1']);
  });

  test('many cycles keep one capture, and the end leaves none', async () => {
    const harness = await startLifecycle();
    const id = await paused(harness);
    const { pid } = await (async () => {
      await harness.orchestrator.resume(id, 10);
      return harness.world.machineOf(id).guest.spawn({
        ...{ uid: 1000, tag: '', config: new Uint8Array(), pty: false, stdinOpen: false, killInMs: undefined },
        program: { kind: 'sleep', milliseconds: 600_000 },
      });
    })();
    const captures = new Set<string | undefined>();
    for (let cycle = 0; cycle < 5; cycle++) {
      await harness.orchestrator.pause(id);
      const { capture } = harness.orchestrator.get(id);
      captures.add(capture);
      expect(harness.disk.captures).toEqual(new Set([capture]));
      expect((await harness.orchestrator.connect(id, 10)).resumed).toBe(true);
      // What it was restored from may still be what its memory is mapped from.
      expect(harness.disk.captures).toEqual(new Set([capture]));
      expect(harness.world.machineOf(id).guest.processes.map((process) => process.pid)).toEqual([pid]);
    }
    expect(captures.size).toBe(5);
    await harness.orchestrator.kill(id, 'test');
    expect(harness.leftovers()).toEqual({});
  });

  test('of many connects at once exactly one resumes, and all get the longest time asked for', async () => {
    const harness = await startLifecycle();
    const id = await paused(harness);
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, index) => harness.orchestrator.connect(id, 100 + index)),
    );
    expect(answers.filter(({ resumed }) => resumed)).toHaveLength(1);
    expect(harness.counted.filter((call) => call === 'resumeSucceeded')).toHaveLength(1);
    expect(harness.world.machines.size).toBe(1);
    expect(harness.orchestrator.get(id).deadline).toBe(harness.clock.now() + 119_000);
  });

  test('connects during a pause wait for it, then one of them resumes', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const pausing = harness.orchestrator.pause(id);
    await capture.hit;
    const connects = Array.from({ length: 20 }, () => harness.orchestrator.connect(id, 10));
    capture.release();
    await pausing;
    expect((await Promise.all(connects)).filter(({ resumed }) => resumed)).toHaveLength(1);
    expect(harness.counted.filter((call) => call === 'resumeSucceeded')).toHaveLength(1);
  });

  test('resumes at once share one outcome', async () => {
    const harness = await startLifecycle();
    const id = await paused(harness);
    const records = await Promise.all(Array.from({ length: 5 }, () => harness.orchestrator.resume(id, 10)));
    expect(new Set(records.map(({ instanceId }) => instanceId)).size).toBe(1);
    expect(await failure(harness.orchestrator.resume(id, 10))).toMatchObject({ code: 'conflict' });
  });
});

describe('a resume that fails', () => {
  test.each(['start', 'activate'] as const)(
    'at %s leaves the sandbox paused, and it can be resumed later',
    async (point) => {
      const harness = await startLifecycle();
      const id = await paused(harness);
      const { deadline, timeoutSeconds } = harness.orchestrator.get(id);
      harness.world.faults.next(point, { kind: 'fail' });
      const outcomes = await Promise.all(
        Array.from({ length: 20 }, () => failure(harness.orchestrator.connect(id, 10))),
      );
      for (const outcome of outcomes) expect(outcome).toMatchObject({ code: 'create_failed' });
      expect(harness.counted.filter((call) => call.startsWith('resumeFailed'))).toEqual(['resumeFailed:create_failed']);
      expect(harness.orchestrator.get(id)).toMatchObject({ deadline, timeoutSeconds });
      expect(harness.stored()).toMatchObject([{ id, state: 'paused', deadline }]);
      await expectPaused(harness, id);
    },
  );

  test('because it takes too long leaves it paused', async () => {
    const harness = await startLifecycle({ config: { resumeTimeoutMs: 1_000 } });
    const id = await paused(harness);
    harness.world.faults.next('activate', { kind: 'hang' });
    const outcome = failure(harness.orchestrator.resume(id, 10));
    await harness.clock.advance(5_000);
    expect(await outcome).toMatchObject({ code: 'deadline_exceeded' });
    await expectPaused(harness, id);
  });

  test('because its engine dies before it is ready leaves it paused', async () => {
    const harness: LifecycleHarness = await startLifecycle({
      intercept: async ({ record }, apply) => {
        await apply();
        const resumed = record?.state === 'running' && record.capture !== undefined;
        if (resumed && fail) harness.world.machineOf(record.id).end('engine-died', 'killed by the test');
      },
    });
    let fail = true;
    const id = await paused(harness);
    expect(await failure(harness.orchestrator.resume(id, 10))).toMatchObject({ code: 'create_failed' });
    fail = false;
    await expectPaused(harness, id);
  });

  test.each(['resuming', 'running'] as const)(
    'because the record %s cannot be written leaves it paused',
    async (state) => {
      let fail = false;
      const harness = await startLifecycle({
        intercept: async ({ record }, apply) => {
          if (fail && record?.state === state) throw new PlatformError('no_space', 'no space left for the ledger');
          await apply();
        },
      });
      const id = await paused(harness);
      fail = true;
      expect(await failure(harness.orchestrator.resume(id, 10))).toMatchObject({ code: 'no_space' });
      fail = false;
      await expectPaused(harness, id);
    },
  );

  test('because what is stored is damaged or of another engine says so and keeps it', async () => {
    const harness = await startLifecycle();
    const id = await paused(harness);
    const directory = `/captures/${harness.orchestrator.get(id).capture}`;
    const manifest = await harness.world.artifacts.get(directory, 'manifest.json');
    const put = (text: string) => harness.world.artifacts.put(directory, 'manifest.json', Buffer.from(text));
    await put('{}');
    expect(await failure(harness.orchestrator.resume(id, 10))).toMatchObject({ code: 'create_failed' });
    await put(
      JSON.stringify({ ...JSON.parse(String(manifest && Buffer.from(manifest))), fingerprint: { engine: 'other' } }),
    );
    expect(await failure(harness.orchestrator.resume(id, 10))).toMatchObject({
      code: 'conflict',
      message: expect.stringMatching(/engine=other.*engine=fake-1/),
    });
    await put(String(manifest && Buffer.from(manifest)));
    await expectPaused(harness, id);
  });

  test('is undone by a kill in the middle', async () => {
    const harness = await startLifecycle();
    const id = await paused(harness);
    const activate = harness.world.faults.next('activate', { kind: 'hang' });
    const resuming = failure(harness.orchestrator.resume(id, 10));
    await activate.hit;
    await harness.orchestrator.kill(id, 'test');
    expect(await resuming).toMatchObject({ code: 'killed', message: 'sandbox was killed' });
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });
});

describe('shutdown', () => {
  test('keeps what is paused, pauses what runs, waits for a pause under way and rolls a resume back', async () => {
    const harness = await startLifecycle();
    const still = await paused(harness);
    const resuming = await paused(harness);
    const { id: pausing } = await harness.orchestrator.create(CREATE_BASE);
    const { id: running } = await harness.orchestrator.create(CREATE_BASE);
    const start = harness.world.faults.next('start', { kind: 'hang' });
    const resumed = failure(harness.orchestrator.resume(resuming, 10));
    await start.hit;
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const stored = failure(harness.orchestrator.pause(pausing));
    await capture.hit;
    const over = harness.orchestrator[Symbol.asyncDispose]();
    expect(await resumed).toMatchObject({ code: 'unavailable' });
    capture.release();
    expect(await stored).toBe('done');
    await over;
    expect(harness.world.machines.size).toBe(0);
    expect(new Map(harness.stored().map(({ id, state }) => [id, state]))).toEqual(
      new Map([still, resuming, pausing, running].map((id) => [id, 'paused'])),
    );
    expect(harness.disk.captures.size).toBe(4);
    expect(harness.log.find('error', '')).toEqual([]);

    const next = await startLifecycle({ world: harness.world, disk: harness.disk, seed: 2 });
    expect(
      next.orchestrator
        .list(LIST_ALL)
        .sandboxes.map(({ id }) => id)
        .sort(),
    ).toEqual([still, resuming, pausing, running].sort());
    for (const id of [still, resuming, pausing, running]) {
      expect((await next.orchestrator.connect(id, 10)).resumed).toBe(true);
      await next.orchestrator.kill(id, 'test');
    }
    expect(next.leftovers()).toEqual({});
  });
});
