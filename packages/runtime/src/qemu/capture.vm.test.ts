import { link, mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createRecordingLog } from '@agentenv/core/testing';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import type { Backend, RunningSandbox, StoredSnapshot } from '../backend.ts';
import { runInGuest } from '../testing/guest-run.ts';
import { createLaunchPlans } from '../testing/launch-plans.ts';
import { createQemuWorld, type QemuWorld } from '../testing/qemu-world.ts';

const RESOURCES = { vcpus: 1, memoryMB: 512, diskSizeMB: 4_096 };
const DEADLINE_MS = 30_000;
const MIB = 1024 * 1024;

/** Counts in memory and reads random numbers, and reports both once its file `go` appears. */
const WITNESS = `
import os, time
counter = 0
before = []
open('/home/user/ready', 'w').close()
while not os.path.exists('/home/user/go'):
    counter += 1
    before.append(os.urandom(8).hex())
    del before[:-4]
    time.sleep(0.01)
with open('/home/user/report.new', 'w') as report:
    print(counter, os.urandom(16).hex(), before[0], file=report)
os.rename('/home/user/report.new', '/home/user/report')
time.sleep(600)
`;

/** Changes 200 files one after another, remembers what is in each, and compares all of them once its file `go` appears. */
const CHANGER = `
import hashlib, os, time
counter = 0
known = {}
os.mkdir('/home/user/files')
while not os.path.exists('/home/user/go'):
    counter += 1
    data = os.urandom(3000)
    with open(f'/home/user/files/{counter % 200}', 'wb') as file:
        file.write(data)
    known[counter % 200] = hashlib.sha256(data).digest()
    with open('/home/user/progress.new', 'w') as file:
        print(counter, file=file)
    os.rename('/home/user/progress.new', '/home/user/progress')
    time.sleep(0.002)
wrong = [name for name, digest in known.items()
         if hashlib.sha256(open(f'/home/user/files/{name}', 'rb').read()).digest() != digest]
with open('/home/user/report.new', 'w') as report:
    print(counter, len(known), len(wrong), len(os.listdir('/home/user/files')), file=report)
os.rename('/home/user/report.new', '/home/user/report')
`;

describe('captures of a running sandbox', () => {
  const log = createRecordingLog();
  const live: RunningSandbox[] = [];
  let world: QemuWorld;
  let backend: Backend;
  let template: StoredSnapshot;
  const planFor = createLaunchPlans('icapture00', RESOURCES);

  beforeAll(async () => {
    world = await createQemuWorld({ log });
    backend = world.open();
    template = await backend.prepareTemplate(world.artifacts.rootfs.base, RESOURCES);
  });
  afterEach(async () => {
    await Promise.all(live.splice(0).map((sandbox) => sandbox.stop()));
    log.lines.length = 0;
  });
  afterAll(() => world?.[Symbol.asyncDispose]());

  async function restore(snapshot = template): Promise<RunningSandbox> {
    const sandbox = await backend.restore(snapshot, planFor());
    live.push(sandbox);
    return sandbox;
  }

  /** A capture of a sandbox that goes on. */
  async function snapshot(sandbox: RunningSandbox): Promise<StoredSnapshot> {
    const directory = await world.emptyDirectory();
    const captured = await sandbox.capture(directory);
    await sandbox.release();
    await captured.release();
    return { directory, manifest: captured.manifest };
  }

  const shell = async (sandbox: RunningSandbox, script: string) => {
    const { code, stdout, stderr } = await runInGuest(sandbox.agent, ['sh', '-c', script]);
    expect([code, stderr]).toEqual([0, '']);
    return stdout.trim();
  };

  test('copies go on with the memory of their source, share its base, and never its random numbers', async () => {
    const source = await restore();
    await source.agent.spawn({
      ...{ user: 'user', argv: ['python3', '-c', WITNESS], env: {}, cwd: '', defaultCwd: '', stdin: false, tag: '' },
      ...{ config: new Uint8Array(0), killAfterMs: 0 },
    });
    await vi.waitFor(() => shell(source, 'test -e /home/user/ready'), DEADLINE_MS);
    const captured = await snapshot(source);
    const { memory, memoryLayers = [], diskLayers = [] } = captured.manifest;
    expect(memory?.sha256).toBe(template.manifest.memory?.sha256);
    expect([memoryLayers.length, diskLayers.length]).toEqual([1, 1]);
    expect(memoryLayers[0]?.size).toBeLessThan(64 * MIB);
    const inode = async ({ directory, manifest }: StoredSnapshot) =>
      (await stat(join(directory, manifest.memory?.path ?? ''))).ino;
    expect(await inode(captured)).toBe(await inode(template));

    const copies = await Promise.all([restore(captured), restore(captured)]);
    const reports = await Promise.all(
      [source, ...copies].map(async (sandbox) => {
        await shell(sandbox, 'touch /home/user/go');
        await vi.waitFor(() => shell(sandbox, 'test -e /home/user/report'), DEADLINE_MS);
        return (await shell(sandbox, 'cat /home/user/report')).split(' ');
      }),
    );
    for (const report of reports) expect(Number(report[0])).toBeGreaterThan(0);
    expect(new Set(reports.map((report) => report[1])).size).toBe(3);
    for (const { agent } of copies) expect(Math.abs(await agent.clockSkew())).toBeLessThan(1_000);
  });

  test('output of the source has no gap over ten captures, whose disk layers are merged; the last one has files and memory of all', async () => {
    const source = await restore();
    const numbers = 200_000;
    const child = await source.agent.spawn({
      ...{ user: 'user', argv: ['seq', String(numbers)], env: {}, cwd: '', defaultCwd: '', stdin: false, tag: '' },
      ...{ config: new Uint8Array(0), killAfterMs: 0 },
    });
    const pieces: Uint8Array[] = [];
    child.onOutput(({ data }) => {
      pieces.push(Uint8Array.from(data));
    });
    const captures = 10;
    const lengths: number[] = [];
    const keptLayers = async () =>
      (await readdir(join(world.home, 'layers'), { recursive: true })).filter((name) => name.endsWith('.qcow2')).length;
    let last = template;
    let written: readonly (string | undefined)[] = [];
    for (let index = 0; index < captures; index++) {
      await shell(source, `echo ${index} > /home/user/file-${index}; echo ${index} >> /dev/shm/memory; sync`);
      const former = last;
      last = await snapshot(source);
      // No capture needs the files of an earlier one.
      if (former !== template) await rm(former.directory, { recursive: true });
      // A long chain is merged behind the captures, so that none of them writes the whole disk.
      expect(last.manifest.disk.sha256).toBe(template.manifest.disk.sha256);
      lengths.push(last.manifest.diskLayers?.length ?? 0);
      if (lengths.length === 5) await vi.waitFor(async () => expect(await keptLayers()).toBeLessThan(4), DEADLINE_MS);
      const { memoryLayers = [] } = last.manifest;
      expect(memoryLayers).toHaveLength(index + 1);
      // What was captured before is there by its file, not again.
      expect(memoryLayers.slice(0, -1).map(({ sha256 }) => sha256)).toEqual(written);
      written = memoryLayers.map(({ sha256 }) => sha256);
    }
    expect(Math.max(...lengths)).toBeLessThan(captures);
    expect(log.find('warn', 'were not merged')).toEqual([]);
    expect((await child.exit).code).toBe(0);
    await child.outputEnd;
    const expected = Array.from({ length: numbers }, (_, index) => `${index + 1}\n`).join('');
    expect(Buffer.concat(pieces).toString() === expected).toBe(true);
    const copy = await restore(last);
    const all = Array.from({ length: captures }, (_, index) => index).join('\n');
    for (const sandbox of [copy, source]) {
      // From the disk, of which the engine of the source has other layers than at its start.
      await runInGuest(sandbox.agent, ['sh', '-c', 'echo 3 > /proc/sys/vm/drop_caches'], { user: 'root' });
      expect(await shell(sandbox, 'cat $(ls -v /home/user/file-*)')).toBe(all);
    }
    expect(await shell(copy, 'cat /dev/shm/memory')).toBe(all);
  });

  test('a disk of several layers boots, and what it wrote is captured upon them', async () => {
    let sandbox = await restore();
    const captureDisk = async (): Promise<StoredSnapshot> => {
      const directory = await world.emptyDirectory();
      const captured = await sandbox.captureDisk(directory);
      await sandbox.release();
      return { directory, manifest: captured.manifest };
    };
    let last = template;
    for (let index = 0; index < 3; index++) {
      await shell(sandbox, `echo ${index} > /home/user/file-${index}`);
      last = await captureDisk();
    }
    expect(last.manifest.diskLayers).toHaveLength(3);
    await sandbox.stop();
    const boot = async (): Promise<void> => {
      sandbox = await backend.boot(last, planFor());
      live.push(sandbox);
    };
    await boot();
    await shell(sandbox, 'echo 3 > /home/user/file-3');
    last = await captureDisk();
    expect(last.manifest.diskLayers).toHaveLength(4);
    await sandbox.stop();
    await boot();
    expect(await shell(sandbox, 'cat $(ls -v /home/user/file-*)')).toBe('0\n1\n2\n3');
  });

  test('five pauses keep every byte of 200 changing files and a counter that goes on', async () => {
    let sandbox = await restore();
    await sandbox.agent.spawn({
      ...{ user: 'user', argv: ['python3', '-c', CHANGER], env: {}, cwd: '', defaultCwd: '', stdin: false, tag: '' },
      ...{ config: new Uint8Array(0), killAfterMs: 0 },
    });
    const progress = async () => Number(await shell(sandbox, 'cat /home/user/progress 2>/dev/null || echo 0'));
    const passes = (count: number) => expect.poll(progress, { timeout: 2 * DEADLINE_MS }).toBeGreaterThan(count);
    await passes(200);
    for (let cycle = 0; cycle < 5; cycle++) {
      const before = await progress();
      const directory = await world.emptyDirectory();
      const { manifest } = await sandbox.capture(directory);
      await sandbox.stop();
      sandbox = await backend.restore({ directory, manifest }, { ...planFor(), identity: 'kept' });
      live.push(sandbox);
      await rm(directory, { recursive: true });
      expect(await progress()).toBeGreaterThanOrEqual(before);
      await passes(before + 20);
    }
    const counted = await progress();
    const toDisk = ['sh', '-c', 'touch /home/user/go; sync; echo 3 > /proc/sys/vm/drop_caches'];
    expect((await runInGuest(sandbox.agent, toDisk, { user: 'root' })).code).toBe(0);
    await vi.waitFor(() => shell(sandbox, 'test -e /home/user/report'), DEADLINE_MS);
    const [counter, known, wrong, files] = (await shell(sandbox, 'cat /home/user/report')).split(' ').map(Number);
    expect(counter).toBeGreaterThanOrEqual(counted);
    expect([known, wrong, files]).toEqual([200, 0, 200]);
  });

  test('a capture of which a file was cut short or changed by a bit starts nothing', async () => {
    const source = await restore();
    // Layers upon layers, the first captures of which are gone.
    for (let index = 0; index < 2; index++) await rm((await snapshot(source)).directory, { recursive: true });
    const captured = await snapshot(source);
    expect(captured.manifest.memoryLayers).toHaveLength(3);
    await source.stop();
    const { vmState, memoryLayers = [], diskLayers = [] } = captured.manifest;
    for (const artifact of [vmState, ...memoryLayers, ...diskLayers]) {
      const damaged = artifact?.path ?? '';
      const whole = await readFile(join(captured.directory, damaged));
      const flipped = Buffer.from(whole);
      flipped[whole.length >> 1] = (flipped[whole.length >> 1] ?? 0) ^ 1;
      for (const contents of [flipped, whole.subarray(0, whole.length - 1)]) {
        const other = { directory: await world.emptyDirectory(), manifest: captured.manifest };
        for (const name of await readdir(captured.directory)) {
          const path = join(other.directory, name);
          await (name === damaged ? writeFile(path, contents) : link(join(captured.directory, name), path));
        }
        await expect(backend.restore(other, planFor())).rejects.toMatchObject({
          ...{ code: 'create_failed', message: `the snapshot is damaged: ${damaged}` },
        });
        await rm(other.directory, { recursive: true });
      }
    }
    expect(await world.leftovers()).toEqual([]);
  });

  test('memory of which most changed becomes a base of its own', async () => {
    const source = await restore();
    expect(
      (await runInGuest(source.agent, ['mount', '-o', 'remount,size=90%', '/dev/shm'], { user: 'root' })).code,
    ).toBe(0);
    await shell(source, 'head -c 290M /dev/zero > /dev/shm/large; echo the end >> /dev/shm/large');
    const captured = await snapshot(source);
    expect(captured.manifest.memoryLayers).toBeUndefined();
    expect(captured.manifest.memory?.sha256).not.toBe(template.manifest.memory?.sha256);
    const copy = await restore(captured);
    expect(await shell(copy, 'tail -c 8 /dev/shm/large')).toBe('the end');
  });

  test('a capture for which there is no room leaves the guest running and the directory empty', async () => {
    const sandbox = await restore();
    const directory = await world.emptyDirectory();
    await world.exec({ argv: ['mount', '-t', 'tmpfs', '-o', 'size=1m', 'aenv-test', directory], deadlineMs: 10_000 });
    try {
      await expect(sandbox.capture(directory)).rejects.toMatchObject({ code: 'no_space' });
      expect(await readdir(directory)).toEqual([]);
    } finally {
      await world.exec({ argv: ['umount', directory], deadlineMs: 10_000 });
    }
    expect(await shell(sandbox, 'echo still here')).toBe('still here');
    // The same sandbox can be captured afterwards.
    const copy = await restore(await snapshot(sandbox));
    expect(await shell(copy, 'echo and again')).toBe('and again');
  });

  test('an engine that dies while it is captured ends the sandbox and leaves nothing', async () => {
    const sandbox = await restore();
    const directory = join(await world.emptyDirectory(), 'capture');
    await mkdir(directory);
    const capture = sandbox.capture(directory);
    process.kill(Number(sandbox.identity.pid), 'SIGKILL');
    await expect(capture).rejects.toMatchObject({ code: 'sandbox_unavailable' });
    expect((await sandbox.ended).reason).toMatch(/engine-died|channel-lost/);
    expect(await readdir(directory)).toEqual([]);
    await vi.waitFor(async () => expect(await world.leftovers()).toEqual([]), { timeout: DEADLINE_MS, interval: 50 });
  });
});
