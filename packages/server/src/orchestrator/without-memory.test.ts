import { PlatformError } from '@agentenv/core';
import type { EnvdOptions } from '@agentenv/envd';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

const FILE = '/home/user/kept';
const BOOT_ID = '/proc/sys/kernel/random/boot_id';

/** A running sandbox with a file and a process. */
async function lively(harness: LifecycleHarness, changes: Partial<typeof CREATE_BASE> = {}): Promise<string> {
  const { id } = await harness.orchestrator.create({ ...CREATE_BASE, ...changes });
  const { guest } = harness.world.machineOf(id);
  const owner = { uid: 1000, gid: 1000, mode: 0o644 };
  guest.files.write({ path: FILE, ...owner, content: Buffer.from('kept'), xattrs: new Map() });
  guest.spawn({
    ...{ uid: 1000, tag: '', config: new Uint8Array(), pty: false, stdinOpen: false, killInMs: undefined },
    program: { kind: 'sleep', milliseconds: 600_000 },
  });
  return id;
}

const look = (harness: LifecycleHarness, id: string) => {
  const { guest } = harness.world.machineOf(id);
  return { file: guest.files.text(FILE), processes: guest.processes.length, boot: guest.files.text(BOOT_ID) };
};

const failing = (harness: LifecycleHarness, point: 'capture' | 'start', times: number): void => {
  for (let time = 0; time < times; time++) {
    const error = new PlatformError('no_space', 'the disk is full');
    harness.world.faults.next(point, { kind: 'fail', error });
  }
};

describe('a pause without memory', () => {
  test('keeps the files and everything about the sandbox; it boots when it is resumed', async () => {
    const services: EnvdOptions[] = [];
    const harness = await startLifecycle({
      createEnvd: (options) => {
        services.push(options);
        return { handle() {}, async [Symbol.asyncDispose]() {} };
      },
    });
    const id = await lively(harness, { metadata: { name: 'kept' }, envVars: { COLOUR: 'blue' } });
    const before = harness.orchestrator.get(id);
    const { boot } = look(harness, id);
    await harness.orchestrator.pause(id, 'disk');
    expect(harness.orchestrator.get(id)).toMatchObject({ state: 'paused', captureKind: 'disk' });
    expect(harness.world.machines.size).toBe(0);
    const { resumed, record } = await harness.orchestrator.connect(id, 77);
    expect(resumed).toBe(true);
    const { id: _id, instanceId, channelKey, runtime, capture, captureKind, ...same } = before;
    expect(record).toMatchObject({ ...same, timeoutSeconds: 77, deadline: harness.clock.now() + 77_000 });
    expect(record.instanceId).not.toBe(instanceId);
    expect(look(harness, id)).toEqual({ file: 'kept', processes: 0, boot: expect.not.stringMatching(boot) });
    const { guest } = harness.world.machineOf(id);
    expect(guest.hostname).toBe(id);
    expect(guest.files.text('/run/e2b/.E2B_SANDBOX_ID')).toBe(id);
    const { agent: _former, ...options } = services[0] ?? {};
    expect(services[1]).toMatchObject({ ...options, journal: expect.any(Function) });
    await harness.orchestrator.kill(id, 'test');
    expect(harness.leftovers()).toEqual({});
  });

  test('is followed by one with memory, and that by one without', async () => {
    const harness = await startLifecycle();
    const id = await lively(harness);
    await harness.orchestrator.pause(id, 'disk');
    await harness.orchestrator.resume(id, 100);
    harness.world.machineOf(id).guest.spawn({
      ...{ uid: 1000, tag: '', config: new Uint8Array(), pty: false, stdinOpen: false, killInMs: undefined },
      program: { kind: 'sleep', milliseconds: 600_000 },
    });
    const { boot } = look(harness, id);
    await harness.orchestrator.pause(id);
    expect(harness.orchestrator.get(id).captureKind).toBe('full');
    await harness.orchestrator.resume(id, 100);
    expect(look(harness, id)).toEqual({ file: 'kept', processes: 1, boot });
    await harness.orchestrator.pause(id, 'disk');
    expect(harness.disk.captures.size).toBe(1);
    await harness.orchestrator.resume(id, 100);
    expect(look(harness, id)).toMatchObject({ file: 'kept', processes: 0 });
  });

  test('is still one after a restart of the server', async () => {
    const former = await startLifecycle();
    const id = await lively(former);
    await former.orchestrator.pause(id, 'disk');
    const { world, disk } = former;
    const harness = await startLifecycle({ world, disk, seed: 2 });
    expect(harness.orchestrator.get(id)).toMatchObject({ state: 'paused', captureKind: 'disk' });
    await harness.orchestrator.connect(id, 100);
    expect(look(harness, id)).toMatchObject({ file: 'kept', processes: 0 });
  });

  test('that fails leaves the sandbox running with its processes', async () => {
    const harness = await startLifecycle();
    const id = await lively(harness);
    failing(harness, 'capture', 1);
    await expect(harness.orchestrator.pause(id, 'disk')).rejects.toMatchObject({ code: 'no_space' });
    expect(harness.orchestrator.get(id)).toMatchObject({ state: 'running', captureKind: 'full' });
    expect(look(harness, id)).toMatchObject({ processes: 1 });
    expect(harness.disk.captures.size).toBe(0);
  });

  test('is joined by its like, and one with memory finds the sandbox paused', async () => {
    const harness = await startLifecycle();
    const id = await lively(harness);
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const first = harness.orchestrator.pause(id, 'disk');
    await capture.hit;
    const second = harness.orchestrator.pause(id, 'disk');
    const other = harness.orchestrator.pause(id).catch((error: unknown) => error);
    capture.release();
    await Promise.all([first, second]);
    expect(await other).toMatchObject({ code: 'conflict', message: `sandbox '${id}' is paused` });
    expect(harness.counted.filter((name) => name === 'pauseSucceeded')).toHaveLength(1);
  });
});

describe('traffic', () => {
  test('never resumes a sandbox without memory', async () => {
    const harness = await startLifecycle();
    const id = await lively(harness, { autoResume: true });
    await harness.orchestrator.pause(id, 'disk');
    expect(harness.orchestrator.target(id).kind).toBe('not-proxyable');
    await expect(harness.orchestrator.wake(id)).rejects.toMatchObject({ code: 'conflict' });
    expect(harness.world.machines.size).toBe(0);
    await harness.orchestrator.connect(id, 100);
    expect(harness.orchestrator.target(id).kind).toBe('ready');
    await harness.orchestrator.pause(id);
    expect(harness.orchestrator.target(id).kind).toBe('asleep');
    await harness.orchestrator.wake(id);
    expect(harness.orchestrator.get(id).state).toBe('running');
  });

  test('that came while it was being paused neither', async () => {
    const harness = await startLifecycle();
    const id = await lively(harness, { autoResume: true });
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const pausing = harness.orchestrator.pause(id, 'disk');
    await capture.hit;
    const waking = harness.orchestrator.wake(id).catch((error: unknown) => error);
    capture.release();
    await pausing;
    expect(await waking).toMatchObject({ code: 'conflict' });
    expect(harness.orchestrator.get(id).state).toBe('paused');
  });
});

describe('a resume from the disk', () => {
  test('boots though there is memory, and loses it with the next pause only', async () => {
    const harness = await startLifecycle();
    const id = await lively(harness);
    await harness.orchestrator.pause(id);
    const { capture } = harness.orchestrator.get(id);
    failing(harness, 'start', 1);
    await expect(harness.orchestrator.connect(id, 100, 'disk')).rejects.toMatchObject({ code: 'no_space' });
    expect(harness.orchestrator.get(id)).toMatchObject({ state: 'paused', capture, captureKind: 'full' });
    expect((await harness.orchestrator.connect(id, 100, 'disk')).resumed).toBe(true);
    expect(look(harness, id)).toMatchObject({ file: 'kept', processes: 0 });
    expect(harness.disk.captures).toEqual(new Set([capture]));
    expect((await harness.orchestrator.connect(id, 100, 'disk')).resumed).toBe(false);
  });

  test('goes on where an engine of another version cannot restore the memory', async () => {
    const former = await startLifecycle();
    const id = await lively(former);
    await former.orchestrator.pause(id);
    const { world, disk } = former;
    const harness = await startLifecycle({ world, disk, fingerprint: { engine: 'fake-2' }, seed: 2 });
    await expect(harness.orchestrator.connect(id, 100)).rejects.toMatchObject({
      code: 'conflict',
      message: 'the snapshot was captured on fake (engine=fake-1), this host restores fake (engine=fake-2)',
    });
    expect(harness.orchestrator.get(id).state).toBe('paused');
    expect((await harness.orchestrator.connect(id, 100, 'disk')).resumed).toBe(true);
    expect(look(harness, id)).toMatchObject({ file: 'kept', processes: 0 });
    await harness.orchestrator.pause(id);
    await harness.orchestrator.resume(id, 100);
  });
});

describe('a timeout that pauses without memory', () => {
  test('does so, and goes on doing so after a resume and for forks', async () => {
    const harness = await startLifecycle();
    const id = await lively(harness, { timeoutSeconds: 10, onTimeout: 'pause', timeoutKeeps: 'disk' });
    const [fork] = await harness.orchestrator.fork(id, { count: 1, timeoutSeconds: 5 });
    await harness.clock.advance(12_000);
    const child = fork?.kind === 'started' ? fork.record.id : '';
    for (const each of [id, child]) {
      expect(harness.orchestrator.get(each)).toMatchObject({ state: 'paused', captureKind: 'disk' });
    }
    await harness.orchestrator.connect(id, 10);
    await harness.clock.advance(12_000);
    expect(harness.orchestrator.get(id)).toMatchObject({ state: 'paused', captureKind: 'disk' });
  });

  const givingUp = async (changes: Partial<typeof CREATE_BASE>, failures: number) => {
    const harness = await startLifecycle({ config: { pauseFailure: 'filesystem' } });
    const id = await lively(harness, { timeoutSeconds: 10, onTimeout: 'pause', ...changes });
    failing(harness, 'capture', failures);
    await harness.clock.advance(600_000);
    return { harness, id };
  };

  test('is what becomes of one whose memory cannot be captured, where the configuration says so', async () => {
    const { harness, id } = await givingUp({}, 4);
    expect(harness.counted).toContain('autoPauseGivenUp');
    expect(harness.orchestrator.get(id)).toMatchObject({ state: 'paused', captureKind: 'disk', timeoutKeeps: 'full' });
    expect(harness.world.machines.size).toBe(0);
    await harness.orchestrator.kill(id, 'test');
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });

  test('when that fails as well the sandbox runs on', async () => {
    const { harness, id } = await givingUp({}, 5);
    expect(harness.orchestrator.target(id).kind).toBe('ready');
    expect(harness.counted.filter((name) => name === 'pauseFailed:no_space')).toHaveLength(5);
    await harness.orchestrator.setTimeout(id, 5);
    await harness.clock.advance(6_000);
    expect(harness.orchestrator.get(id)).toMatchObject({ state: 'paused', captureKind: 'full' });
  });

  test('is not tried once more where it had been tried already', async () => {
    const { harness, id } = await givingUp({ timeoutKeeps: 'disk' }, 4);
    expect(harness.orchestrator.target(id).kind).toBe('ready');
    expect(harness.counted.filter((name) => name.startsWith('pauseFailed'))).toHaveLength(4);
  });
});
