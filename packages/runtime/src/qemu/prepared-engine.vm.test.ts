import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { DEFAULT_NETWORK_POLICY, PlatformError } from '@agentenv/core';
import { createRecordingLog } from '@agentenv/core/testing';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import type { Backend, LaunchPlan, RunningSandbox, StoredSnapshot } from '../backend.ts';
import { INTERNET } from '../testing/fake-internet.ts';
import { runInGuest } from '../testing/guest-run.ts';
import { createLaunchPlans } from '../testing/launch-plans.ts';
import { createQemuWorld, type QemuWorld } from '../testing/qemu-world.ts';
import { withRewrittenDisk } from '../testing/rewritten-disk.ts';

const RESOURCES = { vcpus: 1, memoryMB: 512, diskSizeMB: 4_096 };
const DEADLINE_MS = 60_000;

describe('engines that were started in advance', () => {
  const log = createRecordingLog();
  const live: RunningSandbox[] = [];
  let world: QemuWorld;
  let backend: Backend;
  let template: StoredSnapshot;
  const planFor = createLaunchPlans('iprepared0', RESOURCES);

  beforeAll(async () => {
    world = await createQemuWorld({ log });
    backend = world.open({ engines: { low: 1, high: 2 } });
    template = await backend.prepareTemplate(world.artifacts.rootfs.base, RESOURCES);
    backend.warm(template);
  });
  afterEach(async () => {
    await Promise.all(live.splice(0).map((sandbox) => sandbox.stop()));
    log.lines.length = 0;
  });
  afterAll(() => world?.[Symbol.asyncDispose]());

  const settled = <T>(check: () => T | Promise<T>) => vi.waitFor(check, { timeout: DEADLINE_MS, interval: 50 });

  /** Restores when an engine is ready, and says whether it was taken. */
  async function restore(snapshot: StoredSnapshot, overrides?: Partial<LaunchPlan>) {
    await settled(() => expect(backend.status().engines.ready).toBeGreaterThan(0));
    const before = backend.status().engines.hits;
    const sandbox = await backend.restore(snapshot, planFor(overrides));
    live.push(sandbox);
    return { sandbox, taken: backend.status().engines.hits - before === 1 };
  }

  async function shell(sandbox: RunningSandbox, script: string): Promise<string> {
    const { code, stdout, stderr } = await runInGuest(sandbox.agent, ['sh', '-c', script], { user: 'root' });
    expect([code, stderr]).toEqual([0, '']);
    return stdout.trim();
  }

  /** Captured and ended, as a pause does it. */
  async function pause(sandbox: RunningSandbox): Promise<StoredSnapshot> {
    const directory = await world.emptyDirectory();
    const { manifest } = await sandbox.capture(directory);
    await sandbox.stop();
    return { directory, manifest };
  }

  test('keep memory and files over several pauses, without the captures they were made of', async () => {
    const { sandbox: first } = await restore(template);
    let sandbox = first;
    for (const round of [0, 1, 2]) {
      await shell(sandbox, `echo ${round} >> /dev/shm/memory; echo ${round} > /home/user/file-${round}; sync`);
      const captured = await pause(sandbox);
      expect(captured.manifest.diskLayers).toHaveLength(round + 1);
      expect(captured.manifest.memoryLayers).toHaveLength(round + 1);
      const restored = await restore(captured);
      expect(restored.taken).toBe(true);
      await rm(captured.directory, { recursive: true });
      sandbox = restored.sandbox;
    }
    const read = 'cat /dev/shm/memory; echo 3 > /proc/sys/vm/drop_caches; cat /home/user/file-*';
    expect(await shell(sandbox, read)).toBe([0, 1, 2, 0, 1, 2].join('\n'));
  });

  test('take a disk that was written anew', async () => {
    const { sandbox: source } = await restore(template);
    await shell(source, 'echo 0 > /home/user/file-0; sync');
    const captured = await withRewrittenDisk(await pause(source));
    expect(captured.manifest.disk.sha256).not.toBe(template.manifest.disk.sha256);
    const copy = await restore(captured);
    const paused = await pause(copy.sandbox);
    expect(paused.manifest.disk.sha256).toBe(captured.manifest.disk.sha256);
    const again = await restore(paused);
    expect([copy.taken, again.taken]).toEqual([true, true]);
    expect(await shell(again.sandbox, 'echo 3 > /proc/sys/vm/drop_caches; cat /home/user/file-0')).toBe('0');
  });

  test('have the policy of their sandbox before it runs, and make it another one than its source', async () => {
    const { sandbox: source } = await restore(template);
    const captured = await pause(source);
    const policy = { ...DEFAULT_NETWORK_POLICY, allowInternetAccess: false };
    const fetch = ['timeout', '5', 'bash', '-c', `: >/dev/tcp/${INTERNET.web}/80`];
    const [closed, open] = [await restore(captured, { network: policy }), await restore(captured)];
    expect([closed.taken, open.taken]).toEqual([true, true]);
    expect((await runInGuest(closed.sandbox.agent, fetch)).code).not.toBe(0);
    expect((await runInGuest(open.sandbox.agent, fetch)).code).toBe(0);
    const random = 'head -c 16 /dev/urandom | od -An -tx1';
    expect(await shell(closed.sandbox, random)).not.toBe(await shell(open.sandbox, random));
    expect(await shell(open.sandbox, 'hostname')).toMatch(/^iprepared0/);
  });

  test('are told of their slot once the capture is in them, and given up with it when that fails', async () => {
    const { sandbox: source } = await restore(template);
    const captured = await pause(source);
    await settled(() => expect(backend.status().engines.ready).toBeGreaterThan(0));
    const calls: string[] = [];
    const refused = backend.restore(
      captured,
      planFor({
        async beforeStart() {
          calls.push('before');
          throw new PlatformError('unavailable', 'not today');
        },
        async afterStop() {
          calls.push('after');
        },
      }),
    );
    await expect(refused).rejects.toThrow('not today');
    expect(calls).toEqual(['before', 'after']);
    const { sandbox } = await restore(captured);
    expect(await shell(sandbox, 'echo here')).toBe('here');
  });

  test('give way to a fresh engine when the capture cannot be put into them', async () => {
    const { sandbox: source } = await restore(template);
    const captured = await pause(source);
    await settled(() => expect(backend.status().engines.ready).toBeGreaterThan(0));
    // Its name is taken in the directory of every engine that waits.
    const layers = join(world.home, 'layers');
    for (const name of await readdir(layers)) {
      await world.exec({ argv: ['mkdir', join(layers, name, 'disk-0.qcow2')], deadlineMs: 10_000 });
    }
    const { sandbox } = await restore(captured);
    expect(log.find('warn', 'started in advance could not be used')).toHaveLength(1);
    expect(await shell(sandbox, 'echo here')).toBe('here');
  });

  test('are started anew when one dies, and leave nothing when the backend closes', async () => {
    await settled(() => expect(backend.status().engines.ready).toBe(backend.status().engines.target));
    const pids = (await world.leftovers()).filter((line) => line.startsWith('process '));
    for (const line of pids) process.kill(Number(line.split(' ')[1]), 'SIGKILL');
    await settled(() => expect(log.find('warn', 'pool entry was lost')).toHaveLength(pids.length));
    await settled(() => expect(backend.status().engines.ready).toBeGreaterThan(0));
    await backend[Symbol.asyncDispose]();
    expect(await world.leftovers()).toEqual([]);
  });

  test('go on with another server, which knows their disk and memory', async () => {
    const first = world.open({ engines: { low: 1, high: 1 } });
    template = await first.prepareTemplate(world.artifacts.rootfs.base, RESOURCES);
    first.warm(template);
    backend = first;
    const { sandbox: source } = await restore(template);
    await shell(source, 'echo 0 > /home/user/file-0; echo 0 >> /dev/shm/memory; sync');
    // A disk of its own as the base, a layer upon it.
    const { sandbox: middle } = await restore(await withRewrittenDisk(await pause(source)));
    await shell(middle, 'echo 1 > /home/user/file-1; echo 1 >> /dev/shm/memory; sync');
    const captured = await pause(middle);
    live.length = 0;
    const plan = planFor();
    await settled(() => expect(first.status().engines.ready).toBe(1));
    const { identity } = await first.restore(captured, plan);
    expect(first.status().engines.hits).toBe(3);
    await world.crash();

    const next = world.open();
    const { sandboxId, instanceId, resources, network, channelKey } = plan;
    const known = { sandboxId, instanceId, wanted: 'running', identity, resources, network, channelKey } as const;
    const { adopted, ended } = await next.reconcile([known]);
    const [sandbox] = adopted;
    if (sandbox === undefined) throw new Error('it was not adopted');
    expect(ended).toBe(0);
    await shell(sandbox, 'echo later > /home/user/file-later; echo later >> /dev/shm/memory; sync');
    const paused = await pause(sandbox);
    expect(paused.manifest.disk.sha256).toBe(captured.manifest.disk.sha256);
    const digests = ({ manifest: { memoryLayers = [] } }: StoredSnapshot) => memoryLayers.map(({ sha256 }) => sha256);
    expect(digests(paused).slice(0, -1)).toEqual(digests(captured));
    const again = await next.restore(paused, planFor());
    live.push(again);
    const read = 'echo 3 > /proc/sys/vm/drop_caches; cat $(ls -v /home/user/file-*)';
    expect(await shell(again, read)).toBe('0\n1\nlater');
    expect(await shell(again, 'cat /dev/shm/memory')).toBe('0\n1\nlater');
  });

  test('of a server that died are ended by the next', async () => {
    await using next = world.open({ engines: { low: 1, high: 1 } });
    next.warm(await next.prepareTemplate(world.artifacts.rootfs.base, RESOURCES));
    await settled(() => expect(next.status().engines.ready).toBe(1));
    const later = world.open();
    expect((await later.reconcile([])).ended).toBe(1);
  });
});
