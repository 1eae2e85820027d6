import { readdir } from 'node:fs/promises';
import { PlatformError } from '@agentenv/core';
import { createRecordingLog } from '@agentenv/core/testing';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import type { Backend, RunningSandbox, StoredSnapshot } from '../backend.ts';
import type { Fault } from '../testing/faults.ts';
import { runInGuest } from '../testing/guest-run.ts';
import { createLaunchPlans } from '../testing/launch-plans.ts';
import { createQemuWorld, type QemuWorld } from '../testing/qemu-world.ts';

const faults = await vi.hoisted(async () => (await import('../testing/faults.ts')).createFaults());
// Removing what was made is how a failure is dealt with, and finding out what is left is the test's; two faults at once are
// not looked at.
vi.mock('node:fs/promises', async (original) =>
  faults.fileSystem(await original<typeof import('node:fs/promises')>(), ['rm', 'rmdir', 'readdir']),
);

const RESOURCES = { vcpus: 1, memoryMB: 512, diskSizeMB: 4_096 };
const DEADLINE_MS = 60_000;
/** A restore for every call, on a busy host. */
const LONG = { timeout: 600_000 };

describe('a restore of which a storage call fails', () => {
  const log = createRecordingLog();
  const live: RunningSandbox[] = [];
  let world: QemuWorld;
  let backend: Backend;
  /** The same host with an engine started in advance. */
  let pooled: Backend;
  let captured: StoredSnapshot;
  const planFor = createLaunchPlans('irestfault', RESOURCES);

  beforeAll(async () => {
    world = await createQemuWorld({ log });
    backend = world.open();
    const template = await backend.prepareTemplate(world.artifacts.rootfs.base, RESOURCES);
    const source = await backend.restore(template, planFor());
    await runInGuest(source.agent, ['sh', '-c', 'echo kept > /home/user/file; echo kept > /dev/shm/memory; sync']);
    const directory = await world.emptyDirectory();
    captured = { directory, manifest: (await source.capture(directory)).manifest };
    await source.stop();
    pooled = world.open({ engines: { low: 1, high: 1 } });
    await pooled.prepareTemplate(world.artifacts.rootfs.base, RESOURCES);
  });
  afterEach(async () => {
    faults.disarm();
    await Promise.all(live.splice(0).map((sandbox) => sandbox.stop()));
  });
  afterAll(() => world?.[Symbol.asyncDispose]());

  async function read(sandbox: RunningSandbox, path: string): Promise<string> {
    return (await runInGuest(sandbox.agent, ['cat', path])).stdout.trim();
  }

  const error = () => Object.assign(new Error('EIO: injected'), { code: 'EIO' });

  /** A restore of which one call fails; tells whether there was such a call, and whether the restore failed by it. */
  async function restoreWithFault(from: Backend, call: number, when: Fault['when']) {
    faults.arm({ call, when, error, mode: 'one' });
    const outcome = await from.restore(captured, planFor()).catch((caught: unknown) => caught);
    const reached = faults.disarm() >= call;
    const failed = outcome instanceof Error;
    if (failed) expect(outcome, `call ${call}`).toBeInstanceOf(PlatformError);
    else await (outcome as RunningSandbox).stop();
    return { reached, failed };
  }

  test.each(['before', 'after'] as const)(
    'every call that fails %s its effect: says so, leaves nothing, and works the next time',
    LONG,
    async (when) => {
      const files = (await readdir(captured.directory)).toSorted();
      let failed = 0;
      for (let call = 1; ; call++) {
        const outcome = await restoreWithFault(backend, call, when);
        if (outcome.failed) failed++;
        await expect.poll(() => world.leftovers(), { timeout: DEADLINE_MS, message: `call ${call}` }).toEqual([]);
        expect((await readdir(captured.directory)).toSorted()).toEqual(files);
        if (!outcome.reached) break;
      }
      expect(failed).toBeGreaterThan(10);
      const sandbox = await backend.restore(captured, planFor());
      live.push(sandbox);
      expect(await read(sandbox, '/home/user/file')).toBe('kept');
      expect(await read(sandbox, '/dev/shm/memory')).toBe('kept');
    },
  );

  test('an engine in advance of which a call fails is replaced by a fresh one', LONG, async () => {
    pooled.warm(await pooled.prepareTemplate(world.artifacts.rootfs.base, RESOURCES));
    const atRest = async (): Promise<number> => {
      await expect.poll(() => pooled.status().engines.ready, { timeout: DEADLINE_MS }).toBe(1);
      return (await world.leftovers()).length;
    };
    const rest = await atRest();
    for (let call = 1; ; call++) {
      const { reached } = await restoreWithFault(pooled, call, 'before');
      await expect.poll(atRest, { timeout: DEADLINE_MS, message: `call ${call}` }).toBe(rest);
      if (!reached) break;
    }
    expect(log.find('warn', 'started in advance could not be used').length).toBeGreaterThan(1);
    const sandbox = await pooled.restore(captured, planFor());
    live.push(sandbox);
    expect(await read(sandbox, '/dev/shm/memory')).toBe('kept');
  });
});
