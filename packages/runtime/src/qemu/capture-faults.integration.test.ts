import { mkdir, mkdtemp, readdir, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { PlatformError, SILENT_LOG, type SnapshotArtifact } from '@agentenv/core';
import { createRealClock } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { StoredSnapshot } from '../backend.ts';
import { createExec, type Exec } from '../exec.ts';
import type { Fault } from '../testing/faults.ts';
import { Mapper } from '../testing/memory-mapper.ts';
import type { BackgroundJobs } from './background-jobs.ts';
import { captureEngine } from './capture.ts';
import { createDiskChain } from './disk-chain.ts';
import type { Engine } from './engine.ts';
import type { EngineHost } from './engine-host.ts';
import { createMemoryChain, MERGED_MEMORY_LAYERS, type MemoryChain } from './memory-chain.ts';
import { runMemoryJob } from './memory-jobs.ts';
import { createMemoryThread, type MemoryThread } from './memory-thread.ts';
import { createOverlay } from './qcow2.ts';
import type { Qmp } from './qmp.ts';
import { snapshotFiles } from './snapshot-files.ts';
import { createSnapshotIntegrity, digestArtifact } from './snapshot-integrity.ts';

const MIB = 1024 * 1024;
const RESOURCES = { vcpus: 1, memoryMB: 4, diskSizeMB: 16 };

/** A capture per call and per repair, on a busy host. */
const EVERY_CALL_MS = 180_000;

const faults = await vi.hoisted(async () => (await import('../testing/faults.ts')).createFaults());
// Removing what was written is how a failure is dealt with; two faults at once are not looked at.
vi.mock('node:fs/promises', async (original) =>
  faults.fileSystem(await original<typeof import('node:fs/promises')>(), ['rm']),
);

describe('a capture of which a call fails', () => {
  const exec = createExec({ clock: createRealClock() });
  let root: string;
  let memory: MemoryThread;
  let guest: Mapper;
  let serial = 0;
  let base: SnapshotArtifact;
  let disk: SnapshotArtifact;

  beforeEach(async () => {
    root = await mkdtemp(join(tmpdir(), 'aenv-faults-'));
    memory = createMemoryThread();
    for (const [name, bytes] of [
      ['memory', RESOURCES.memoryMB * MIB],
      ['disk', RESOURCES.diskSizeMB * MIB],
      ['rootfs', 4096],
    ] as const) {
      await writeFile(join(root, name), Buffer.alloc(4096, 7));
      await truncate(join(root, name), bytes);
    }
    base = await artifact('memory', RESOURCES.memoryMB * MIB);
    disk = await artifact('disk', RESOURCES.diskSizeMB * MIB);
    guest = await Mapper.start(base.path, RESOURCES.memoryMB * MIB);
  });
  afterEach(async () => {
    faults.disarm();
    await guest[Symbol.asyncDispose]();
    await memory[Symbol.asyncDispose]();
    await rm(root, { recursive: true, force: true });
  });

  const tools = () => ({ memory, exec });

  async function artifact(name: string, virtualSize: number): Promise<SnapshotArtifact> {
    const path = join(root, name);
    const { sha256, bytes } = await digestArtifact(path, virtualSize, tools());
    return { path, size: bytes, virtualSize, sha256 };
  }

  /** The control socket of an engine that does what it is told, as far as a capture notices. */
  function controlOf(instance: string): Qmp {
    let top = 'upper';
    const effects: Readonly<Record<string, (args: Readonly<Record<string, unknown>>) => unknown>> = {
      'xen-save-devices-state': () => writeFile(join(instance, 'devices.state'), 'devices'),
      'blockdev-add': () => ({}),
      'blockdev-snapshot': ({ overlay }) => {
        top = String(overlay);
      },
      'query-block': () => [{ inserted: { image: { filename: `${top}.qcow2` } } }],
    };
    return {
      version: '',
      closed: new Promise(() => undefined),
      execute: (command, args = {}) => faults.around(async () => await effects[command]?.(args), 'engine'),
      subscribe: () => ({ [Symbol.dispose]: () => undefined }),
      async [Symbol.asyncDispose]() {},
    };
  }

  async function startEngine(): Promise<Engine> {
    const name = `engine-${serial++}`;
    const [instance, layers] = [join(root, `${name}-instance`), join(root, `${name}-layers`)];
    await mkdir(instance);
    await mkdir(layers);
    await createOverlay(join(instance, 'upper.qcow2'), RESOURCES.diskSizeMB * MIB, 0);
    const qmp = controlOf(instance);
    return {
      ...{ qmp, uid: 0, agentSocket: '', directory: instance, mapped: base.path },
      identity: { pid: guest.pid, startTime: 0, name, uuid: '', mapped: base.path, diskBase: disk.path },
      disk: createDiskChain({
        ...{ qmp, instance, layerDirectory: layers, base: disk.path, layers: [], owner: 0 },
        bytes: RESOURCES.diskSizeMB * MIB,
      }),
      memory: createMemoryChain({
        ...{ directory: layers, layers: [], size: RESOURCES.memoryMB * MIB, jobs, log: SILENT_LOG },
      }),
      ended: new Promise(() => undefined),
      compact() {},
      async abandon() {},
      async [Symbol.asyncDispose]() {},
    };
  }

  const guarded: MemoryThread = {
    run: (job) => faults.around(() => memory.run(job), job.kind === 'save-layer' ? 'engine' : 'host'),
    async [Symbol.asyncDispose]() {},
  };

  const jobs: BackgroundJobs = { run: (job) => faults.around(async () => runMemoryJob(job)) };

  async function emptyDirectory(): Promise<string> {
    const directory = join(root, `capture-${serial++}`);
    await mkdir(directory);
    return directory;
  }

  const none: Exec = () => Promise.reject(new Error('no program is started by this capture'));

  function capture(engine: Engine, directory: string) {
    const host = {
      fingerprint: {},
      memory: guarded,
      clock: createRealClock(),
      log: SILENT_LOG,
    } as unknown as EngineHost;
    const origin = { memory: base, disk };
    const rootfs = { path: join(root, 'rootfs'), digest: '' };
    const facts = { contents: 'full', resources: RESOURCES, fingerprint: {}, channelKey: new Uint8Array(16) } as const;
    return captureEngine(host, { ...facts, engine, rootfs, origin }, directory, none);
  }

  /** What a capture of the memory alone would add. */
  async function addLayer(chain: MemoryChain): Promise<void> {
    await using borrowed = chain.borrow();
    const [source, target] = [join(root, `copy-${serial++}`), join(root, `layer-${serial++}`)];
    const size = RESOURCES.memoryMB * MIB;
    await memory.run({ kind: 'save-layer', pid: guest.pid, mapped: base.path, size, target: source, limit: size });
    const below = borrowed.layers.map(({ path }) => path);
    await memory.run({ kind: 'reduce-layer', source, below, base: base.path, target, size });
    const { bytes, sha256 } = await digestArtifact(target, undefined, tools());
    const known = borrowed.layers.flatMap((layer) => layer.known ?? []);
    await borrowed.follow([...known, { path: target, size: bytes, sha256 }]);
  }

  /** Digest of the memory of a process that was restored from it. */
  async function restoredDigest(snapshot: StoredSnapshot): Promise<string> {
    await using copy = await Mapper.start(base.path, RESOURCES.memoryMB * MIB);
    const sources = snapshotFiles(snapshot).memoryLayers.map(({ path }) => path);
    const job = { kind: 'apply-layers', pid: copy.pid, mapped: base.path, size: RESOURCES.memoryMB * MIB } as const;
    await memory.run({ ...job, sources });
    const digest = await copy.digest();
    return digest;
  }

  /** Every file is there, as its manifest says. */
  async function expectWhole(directory: string, engine: Engine): Promise<StoredSnapshot> {
    const { manifest } = await capture(engine, directory);
    await createSnapshotIntegrity({ ...tools(), log: SILENT_LOG }).verify({ directory, manifest });
    expect(manifest.memoryLayers?.length).toBeGreaterThan(1);
    expect(manifest.diskLayers?.length).toBeGreaterThan(0);
    return { directory, manifest };
  }

  test.each<[Fault['when'], string]>([
    ['before', 'EIO'],
    ['after', 'EIO'],
    ['before', 'ENOSPC'],
  ])(
    'leaves nothing, says why and is followed by a whole one: every call, %s its effect, %s',
    async (when, code) => {
      const failure = () => Object.assign(new Error(`${code}: injected`), { code });
      let call = 1;
      for (; ; call++) {
        await guest.fill(call % 250, [1, 2, 3 + call]);
        const engine = await startEngine();
        // What is captured lies upon what was captured before, which is gone.
        const former = await emptyDirectory();
        await capture(engine, former);
        await rm(former, { recursive: true });
        await guest.fill(call % 50, [2, 900]);
        const directory = await emptyDirectory();
        faults.arm({ call, when, error: failure, mode: 'one' });
        const outcome = await capture(engine, directory).then(
          () => undefined,
          (caught: unknown) => caught,
        );
        if (faults.disarm() < call) {
          expect(outcome).toBeUndefined();
          break;
        }
        // What is told after the manifest is written changes nothing: the capture is whole.
        if (outcome !== undefined) {
          expect(outcome, `call ${call}`).toBeInstanceOf(PlatformError);
          if (code === 'ENOSPC') expect(outcome, `call ${call}`).toMatchObject({ code: 'no_space' });
          expect(await readdir(directory), `call ${call}`).toEqual([]);
        }
        const whole = await expectWhole(await emptyDirectory(), engine);
        // Of some: a process takes its time to start.
        if (call % 8 === 0) expect(await restoredDigest(whole)).toBe(await guest.digest());
      }
      expect(call).toBeGreaterThan(30);
    },
    EVERY_CALL_MS,
  );

  test.each<Fault['when']>(['before', 'after'])(
    'is whole upon layers of which a merge failed at any call, %s its effect',
    async (when) => {
      const engine = await startEngine();
      for (let index = 0; index < MERGED_MEMORY_LAYERS; index++) {
        await guest.fill(index + 1, [index, index + 1]);
        await addLayer(engine.memory);
      }
      let merges = 0;
      for (let call = 1; ; call++) {
        faults.arm({
          call,
          when,
          error: () => Object.assign(new Error('EIO: injected'), { code: 'EIO' }),
          mode: 'one',
        });
        await engine.memory.compact();
        merges = call;
        faults.disarm();
        if (engine.memory.layers.length === 1) break;
        // What failed is tried again upon the next layer.
        await guest.fill(call, [call]);
        await addLayer(engine.memory);
      }
      expect(merges).toBeGreaterThan(4);
      expect(await restoredDigest(await expectWhole(await emptyDirectory(), engine))).toBe(await guest.digest());
    },
  );

  test.each<[string, (path: string) => Promise<void>]>([
    ['was cut short', (path) => truncate(path, 4096)],
    ['is gone', (path) => rm(path)],
  ])('is whole without the layers below when one of them %s, and so is the one after it', async (_, damage) => {
    const engine = await startEngine();
    for (let index = 0; index < 3; index++) {
      await guest.fill(index + 1, [index, index + 1]);
      await addLayer(engine.memory);
    }
    const [, damaged] = engine.memory.layers;
    await damage(damaged?.path ?? '');
    await guest.fill(9, [3, 500]);
    const directory = await emptyDirectory();
    const { manifest } = await capture(engine, directory);
    expect(manifest.memoryLayers).toHaveLength(1);
    await createSnapshotIntegrity({ ...tools(), log: SILENT_LOG }).verify({ directory, manifest });
    expect(await restoredDigest({ directory, manifest })).toBe(await guest.digest());
    const named = [...snapshotFiles({ directory, manifest }).memoryLayers].map(({ path }) => basename(path));
    expect((await readdir(directory)).filter((name) => name.endsWith('.layer'))).toEqual(named);
    await guest.fill(10, [4]);
    expect(await restoredDigest(await expectWhole(await emptyDirectory(), engine))).toBe(await guest.digest());
  });

  test('for whose devices there is no room says so, though the engine knows of an I/O error alone', async () => {
    const engine = await startEngine();
    const execute = () => Promise.reject(new PlatformError('create_failed', 'the engine refused: An IO error'));
    const refusing = { ...engine, qmp: { ...engine.qmp, execute } };
    await expect(capture(refusing, await emptyDirectory())).rejects.toMatchObject({ code: 'create_failed' });
    const mounted = engine.directory;
    await exec({ argv: ['mount', '-t', 'tmpfs', '-o', 'size=64k', 'aenv-test', mounted], deadlineMs: 10_000 });
    try {
      const directory = await emptyDirectory();
      await expect(capture(refusing, directory)).rejects.toMatchObject({ code: 'no_space' });
      expect(await readdir(directory)).toEqual([]);
    } finally {
      await exec({ argv: ['umount', mounted], deadlineMs: 10_000 });
    }
  });

  test('of an engine that is gone in the middle leaves nothing and says so', async () => {
    for (let call = 1; ; call++) {
      const engine = await startEngine();
      const directory = await emptyDirectory();
      const gone = () => new PlatformError('sandbox_unavailable', 'the engine is gone');
      faults.arm({ call, when: 'before', error: gone, mode: 'engine' });
      const outcome = await capture(engine, directory).then(
        () => undefined,
        (caught: unknown) => caught,
      );
      if (faults.disarm() < call) break;
      expect(outcome, `call ${call}`).toMatchObject({ code: 'sandbox_unavailable' });
      expect(await readdir(directory), `call ${call}`).toEqual([]);
    }
  });
});
