import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, open, readdir, readFile, rm, rmdir, stat, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { PlatformError, type SnapshotArtifact } from '@agentenv/core';
import { createRealClock, createRecordingLog, createSeededRandom } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { loadArtifacts } from '../artifacts.ts';
import type { StoredSnapshot } from '../backend.ts';
import { createExec, type Exec } from '../exec.ts';
import { type DiskEngine, shownDisk, startDiskEngine } from '../testing/disk-engine.ts';
import type { Fault } from '../testing/faults.ts';
import { type BackgroundJobs, createBackgroundJobs } from './background-jobs.ts';
import { captureEngine } from './capture.ts';
import { createDiskChain, type DiskChain, linkDiskLayers } from './disk-chain.ts';
import { createDiskCompactor, type DiskCompactor, layersToMerge } from './disk-compactor.ts';
import type { Engine } from './engine.ts';
import type { EngineHost } from './engine-host.ts';
import { findDiskChain } from './find-disk-chain.ts';
import { createMemoryChain } from './memory-chain.ts';
import { runMemoryJob } from './memory-jobs.ts';
import { createMemoryThread, type MemoryThread } from './memory-thread.ts';
import { createOverlay } from './qcow2.ts';
import { MAX_DISK_LAYERS } from './qemu-args.ts';
import type { Qmp } from './qmp.ts';
import { snapshotFiles } from './snapshot-files.ts';
import { digestArtifact } from './snapshot-integrity.ts';

const faults = await vi.hoisted(async () => (await import('../testing/faults.ts')).createFaults());
/** Removals of files wait for it. */
const removals = vi.hoisted(() => ({ allowed: Promise.resolve() }));
vi.mock('node:fs/promises', async (original) => {
  const guarded = faults.fileSystem(await original<typeof import('node:fs/promises')>());
  const slowRm: typeof guarded.rm = async (...args) => {
    await removals.allowed;
    await guarded.rm(...args);
  };
  return { ...guarded, rm: slowRm };
});

const ARTIFACTS = join(import.meta.dirname, '..', '..', '..', '..', '.aenv', 'artifacts');
const MIB = 1024 * 1024;
const CLUSTER = 65_536;
const RESOURCES = { vcpus: 1, memoryMB: 16, diskSizeMB: 16 };
const BYTES = RESOURCES.diskSizeMB * MIB;
/** What an overlay takes beside its guest's clusters. */
const TABLES = 6 * CLUSTER;
/** Of the engine's files; it runs as root here. */
const OWNER = 62_500;
const DEADLINE_MS = 20_000;
/** Of a test that starts a program for every step. */
const LONG = { timeout: 180_000 };
/** More layers than any chain of this disk can have: each is larger than all above it, and the newest few are free. */
const MOST_LAYERS = 9;

describe('the disk of a running engine whose layers are merged', () => {
  const log = createRecordingLog();
  const exec = createExec({ clock: createRealClock() });
  const started: AsyncDisposable[] = [];
  let root: string;
  let memory: MemoryThread;
  let base: string;
  let baseArtifact: SnapshotArtifact;
  /** What the guest's disk has to show. */
  let shown: Buffer;
  let serial = 0;

  beforeEach(async () => {
    root = await mkdtemp(join(tmpdir(), 'aenv-compact-'));
    memory = createMemoryThread();
    base = join(root, 'base.raw');
    shown = Buffer.alloc(BYTES);
    shown.fill(0x5a, 0, 4 * MIB);
    await writeFile(base, shown.subarray(0, 4 * MIB));
    await truncate(base, BYTES);
    const { bytes: size, sha256 } = await digestArtifact(base, BYTES, { memory, exec });
    baseArtifact = { path: base, size, sha256, virtualSize: BYTES };
    await writeFile(join(root, 'rootfs'), Buffer.alloc(4096));
    log.lines.length = 0;
    asked.length = 0;
  });
  afterEach(async () => {
    faults.disarm();
    for (const resource of started.splice(0).reverse()) await resource[Symbol.asyncDispose]();
    await memory[Symbol.asyncDispose]();
    await rm(root, { recursive: true, force: true });
  });

  interface World {
    readonly engine: DiskEngine;
    readonly instance: string;
    readonly layerDirectory: string;
    /** Of the server that runs. */
    server: Server;
  }

  /** What of a server is about one disk. */
  interface Server extends AsyncDisposable {
    readonly disk: DiskChain;
    readonly compactor: DiskCompactor;
    readonly engine: Engine;
  }

  function serve(
    world: Omit<World, 'server'>,
    found: Pick<Parameters<typeof createDiskChain>[0], 'layers' | 'overlay' | 'unused'>,
    jobs: BackgroundJobs = background,
  ): Server {
    const { engine, instance, layerDirectory } = world;
    const qmp = guardedQmp(engine.qmp);
    const disk = createDiskChain({ ...{ qmp, instance, layerDirectory, base, owner: OWNER, bytes: BYTES }, ...found });
    const compactor = createDiskCompactor({ disk, bytes: BYTES, jobs, log });
    // The captures here are of the disk alone.
    const chain = createMemoryChain({ directory: layerDirectory, layers: [], size: 0, jobs, log });
    const parts = { disk, memory: chain, qmp, uid: OWNER, directory: instance };
    return {
      ...{ disk, compactor, engine: parts as unknown as Engine },
      [Symbol.asyncDispose]: () => compactor[Symbol.asyncDispose](),
    };
  }

  const background = createBackgroundJobs({ clock: createRealClock() });
  /** Without a thread, which takes its time to start. */
  const inline: BackgroundJobs = { run: (job) => faults.around(async () => runMemoryJob(job)) };
  /** Commands engines were given. */
  const asked: string[] = [];
  const guardedQmp = (qmp: Qmp): Pick<Qmp, 'execute'> => ({
    execute(...args) {
      asked.push(args[0]);
      return faults.around(() => qmp.execute(...args));
    },
  });

  /** An engine on a capture, or on the base alone, with a server. */
  async function start(snapshot?: StoredSnapshot, jobs?: BackgroundJobs): Promise<World> {
    const name = `engine-${serial++}`;
    const [sockets, instance, layerDirectory] = ['sockets', 'instance', 'layers'].map((kind) =>
      join(root, `${name}-${kind}`),
    ) as [string, string, string];
    for (const directory of [sockets, instance, layerDirectory]) await mkdir(directory);
    await createOverlay(join(instance, 'upper.qcow2'), BYTES, OWNER);
    const frozen = snapshot === undefined ? [] : snapshotFiles(snapshot).diskLayers;
    const linked = await linkDiskLayers(frozen, layerDirectory);
    const files = { sockets, instance, layerDirectory, base, rootfs: join(root, 'rootfs') };
    const engine = await startDiskEngine(createRealClock(), { ...files, diskLayers: linked.length });
    started.push(engine);
    const parts = { engine, instance, layerDirectory };
    const layers = linked.map((known) => ({ path: known.path, known }));
    const world = { ...parts, server: serve(parts, { layers }, jobs) };
    started.push({ [Symbol.asyncDispose]: () => world.server[Symbol.asyncDispose]() });
    return world;
  }

  /** The server is gone; another one takes the engine over, and removes what was left. */
  async function adopt(world: World): Promise<void> {
    const qmp = await world.engine.reconnect();
    const { instance, layerDirectory } = world;
    const found = await findDiskChain({ qmp, instance, layerDirectory, owner: OWNER });
    world.server = serve(world, found, inline);
    await world.server.compactor.compact();
  }

  async function write(world: World, value: number, offset: number, length: number): Promise<void> {
    await world.engine.io(`write -P ${value} ${offset} ${length}`);
    shown.fill(value, offset, offset + length);
  }

  const noProgram: Exec = () => Promise.reject(new Error('this capture writes the whole disk'));

  async function capture(world: World, exec: Exec = noProgram): Promise<StoredSnapshot> {
    // As stopping its guest does.
    await world.engine.io('flush');
    const directory = join(root, `capture-${serial++}`);
    await mkdir(directory);
    const artifacts = await loadArtifacts(ARTIFACTS);
    const host = { memory, artifacts, clock: createRealClock() } as unknown as EngineHost;
    const facts = { contents: 'disk', resources: RESOURCES, fingerprint: {}, channelKey: new Uint8Array(16) } as const;
    const rootfs = { path: join(root, 'rootfs'), digest: '' };
    const origin = { memory: undefined, disk: baseArtifact };
    return captureEngine(host, { ...facts, engine: world.server.engine, rootfs, origin }, directory, exec);
  }

  /** The content of a capture, as whoever restores it would find it. */
  async function expectShown(snapshot: StoredSnapshot, expected = shown): Promise<void> {
    const { disk, diskLayers } = snapshotFiles(snapshot);
    const target = join(root, 'shown.raw');
    const source = shownDisk(
      disk.path,
      diskLayers.map(({ path }) => path),
    );
    await exec({ argv: ['qemu-img', 'convert', '-U', '-O', 'raw', source, target], deadlineMs: DEADLINE_MS });
    const { sha256: found } = await memory.run({ kind: 'hash-file', path: target });
    expect(found).toBe(createHash('sha256').update(expected).digest('hex'));
    for (const layer of diskLayers) {
      const { sha256, bytes } = await digestArtifact(layer.path, undefined, { memory, exec });
      expect({ sha256, size: bytes }).toEqual({ sha256: layer.sha256, size: layer.size });
    }
  }

  /** Nothing is merged any more, and nothing is left but the chain: no file and no node of the engine. */
  async function expectTidy({ engine, instance, layerDirectory, server }: World): Promise<void> {
    const { disk } = server;
    const own = async () => (await readdir(layerDirectory)).toSorted();
    await expect.poll(own, { timeout: DEADLINE_MS }).toEqual(disk.layers.map(({ path }) => basename(path)).toSorted());
    expect(await readdir(instance)).toEqual([basename(disk.top)]);
    const images = [...disk.layers.map(({ path }) => path), disk.top].map((path) => basename(path, '.qcow2'));
    const nodes = async () => {
      const answer = (await engine.qmp.execute('query-named-block-nodes', { flat: true })) as { 'node-name': string }[];
      return answer.map((node) => node['node-name']).filter((name) => /^(upper|merged|disk)-?\d*$/.test(name));
    };
    expect((await nodes()).toSorted()).toEqual([...images, 'disk'].toSorted());
  }

  /** Waits until the chain is as short as it gets. */
  async function compacted({ server }: World): Promise<void> {
    const { disk, compactor } = server;
    await vi.waitFor(
      async () => {
        await compactor.compact();
        const sizes = await Promise.all(disk.layers.map(async ({ path }) => (await stat(path)).blocks));
        expect(layersToMerge(sizes)).toBe(0);
      },
      { timeout: DEADLINE_MS },
    );
  }

  /** What is captured now is what was written, and nothing is left once it is merged. */
  async function expectWhole(world: World): Promise<void> {
    const snapshot = await capture(world);
    await expectShown(snapshot);
    await rm(snapshot.directory, { recursive: true });
    await compacted(world);
    await expectTidy(world);
  }

  test('thirty captures never write the disk, keep what was written meanwhile, and need few layers', LONG, async () => {
    const rng = createSeededRandom(5);
    const world = await start();
    await write(world, 1, 6 * MIB, 8 * MIB);
    let former: StoredSnapshot | undefined;
    const lengths: number[] = [];
    /** After the captures a merge was waited for. */
    const merged: number[] = [];
    for (let index = 0; index < 30; index++) {
      let written = index === 0 ? 8 * MIB : 0;
      for (let blocks = 0; blocks < 6; blocks++) {
        const length = 4096 * (1 + rng.below(16));
        await write(world, 2 + rng.below(200), 4096 * rng.below(BYTES / 4096 - 16), length);
        written += length + 2 * CLUSTER;
      }
      const before = new Set(await filesOf(world.layerDirectory));
      const snapshot = await capture(world);
      // All files but the layer of what was written are second names of files that were there.
      const layers = snapshotFiles(snapshot).diskLayers;
      const fresh = (await filesOf(snapshot.directory)).filter((file) => !before.has(file));
      expect(fresh.length).toBeLessThanOrEqual(3); // manifest.json, base, and that layer
      expect((await stat(layers.at(-1)?.path ?? '')).size).toBeLessThanOrEqual(written + TABLES);
      expect(snapshot.manifest.disk.sha256).toBe(former?.manifest.disk.sha256 ?? snapshot.manifest.disk.sha256);
      lengths.push(layers.length);
      const merging = world.server.compactor.compact();
      // The guest goes on while layers are merged, and the parents of a capture need not stay.
      const captured = Buffer.from(shown);
      for (let block = 0; block < 3; block++) await write(world, rng.below(250), CLUSTER * rng.below(250), 12_288);
      if (former !== undefined) await rm(former.directory, { recursive: true });
      await expectShown(snapshot, captured);
      former = snapshot;
      if (index % 3 > 0) continue;
      await merging;
      await compacted(world);
      merged.push(world.server.disk.layers.length);
    }
    expect(Math.max(...merged)).toBeLessThanOrEqual(MOST_LAYERS);
    expect(lengths.filter((length, index) => length < (lengths[index - 1] ?? 0)).length).toBeGreaterThan(3);
    await compacted(world);
    await expectTidy(world);
    expect(log.find('warn', '')).toEqual([]);
    await expectShown(await capture(world));
  });

  /** Device and inode of each file, but of those a merge removes meanwhile. */
  async function filesOf(directory: string): Promise<readonly string[]> {
    const names = await readdir(directory);
    const found = await Promise.allSettled(names.map((name) => stat(join(directory, name))));
    return found.flatMap((file) => (file.status === 'fulfilled' ? [`${file.value.dev}:${file.value.ino}`] : []));
  }

  /** A world with layers to merge. */
  async function layered(count = 5, jobs?: BackgroundJobs): Promise<World> {
    const world = await start(undefined, jobs);
    await addLayers(world, count);
    return world;
  }

  /** As many captures would leave. */
  async function addLayers(world: World, count: number, value = 10): Promise<void> {
    const { disk } = world.server;
    using _held = await disk.hold();
    while (disk.layers.length < count) {
      await write(world, value, (value % 30) * CLUSTER + disk.layers.length * 5 * CLUSTER, 8 * CLUSTER);
      await disk.freeze();
    }
    await write(world, 77, 40 * CLUSTER, CLUSTER);
  }

  /** Jobs that wait at a gate, so that something else happens in the middle of a merge. */
  function heldJobs() {
    const reached = Promise.withResolvers<void>();
    const gate = Promise.withResolvers<void>();
    const jobs: BackgroundJobs = {
      async run(job, signal) {
        const result = await background.run(job, signal);
        reached.resolve();
        await gate.promise;
        signal.throwIfAborted();
        return result;
      },
    };
    return { jobs, reached: reached.promise, release: () => gate.resolve() };
  }

  test('captures and writes in the middle of a merge are kept, and what was captured can be started and written to', async () => {
    const held = heldJobs();
    const world = await layered(5, held.jobs);
    void world.server.compactor.compact();
    await held.reached;
    const snapshots: StoredSnapshot[] = [];
    for (let index = 0; index < 2; index++) {
      await write(world, 100 + index, index * 7 * CLUSTER, 2 * CLUSTER);
      snapshots.push(await capture(world));
    }
    const [first, second] = snapshots as [StoredSnapshot, StoredSnapshot];
    const captured = Buffer.from(shown);
    const copy = await start(second);
    held.release();
    await compacted(world);
    await expectTidy(world);
    expect(world.server.disk.layers.length).toBeLessThan(5);
    await write(world, 55, 3 * CLUSTER, 4096);
    await expectShown(await capture(world));
    for (const { directory } of [first, second]) await rm(directory, { recursive: true });
    // The copy goes on with files of its own, and merges them itself.
    shown = captured;
    await write(copy, 56, 9 * CLUSTER, 4096);
    await expectShown(await capture(copy));
    await compacted(copy);
    await expectTidy(copy);
    await expectShown(await capture(copy));
  });

  test('one that is stopped or given up in the middle of a merge leaves no file of it', async () => {
    for (const when of ['while it is written', 'when it is written']) {
      const held = heldJobs();
      const world = await layered(4, when === 'when it is written' ? held.jobs : background);
      const length = world.server.disk.layers.length;
      void world.server.compactor.compact();
      if (when === 'when it is written') {
        await held.reached;
        held.release();
      } else {
        await expect.poll(() => readdir(world.layerDirectory), { timeout: DEADLINE_MS }).toContain('merged-5.qcow2');
      }
      await world.server[Symbol.asyncDispose]();
      expect(world.server.disk.layers.length === length || world.server.disk.layers.length === 1).toBe(true);
      await world.server.compactor.compact();
      await adopt(world);
      await expectTidy(world);
      await expectShown(await capture(world));
    }
  });

  test('layers that cannot be merged stay as they are until there is another one, and captures go on', async () => {
    let runs = 0;
    const counted: BackgroundJobs = {
      run(job, signal) {
        runs++;
        return background.run(job, signal);
      },
    };
    const world = await layered(5, counted);
    const [oldest] = world.server.disk.layers;
    const path = oldest?.path ?? '';
    const magic = (await readFile(path)).subarray(0, 4);
    await overwrite(path, Buffer.from('XXXX'));
    await world.server.compactor.compact();
    expect(log.find('warn', 'were not merged')).toHaveLength(1);
    await overwrite(path, magic);
    void world.server.compactor.compact();
    await expectTidy(world);
    await expectShown(await capture(world));
    expect(runs).toBe(1);
    expect(world.server.disk.layers).toHaveLength(6);
    await compacted(world);
    expect(runs).toBeGreaterThan(1);
    await expectTidy(world);
    await expectShown(await capture(world));
  });

  test('what cannot be removed ends neither adoption nor merging, and is removed later', async () => {
    const world = await layered(5, inline);
    const stuck = join(world.layerDirectory, 'merged-90.qcow2');
    await mkdir(stuck);
    await adopt(world);
    expect(log.find('warn', 'images of a disk were not removed').length).toBeGreaterThan(0);
    expect(log.find('warn', 'were not merged')).toEqual([]);
    expect(world.server.disk.layers.length).toBeLessThan(5);
    await expectShown(await capture(world));
    await rmdir(stuck);
    await compacted(world);
    await expectTidy(world);
  });

  test('a capture does not wait for files to be removed', async () => {
    const world = await layered(5, inline);
    const removing = Promise.withResolvers<void>();
    removals.allowed = removing.promise;
    try {
      const merging = world.server.compactor.compact();
      // One for each layer, and one for the file of the first overlay.
      await expect.poll(() => asked.filter((command) => command === 'blockdev-del').length).toBe(6);
      await expectShown(await capture(world));
      expect(await readdir(world.layerDirectory)).toContain('upper.qcow2');
      removing.resolve();
      await merging;
    } finally {
      removing.resolve();
      removals.allowed = Promise.resolve();
    }
    await compacted(world);
    await expectTidy(world);
  });

  test('an engine that hangs in the middle of an exchange is let go of at once, and its disk is found', async () => {
    const held = heldJobs();
    const world = await layered(5, held.jobs);
    const merging = world.server.compactor.compact();
    await held.reached;
    process.kill(world.engine.pid, 'SIGSTOP');
    try {
      asked.length = 0;
      held.release();
      await expect.poll(() => asked, { timeout: DEADLINE_MS }).toEqual(['blockdev-add']);
      await world.server[Symbol.asyncDispose]();
      await merging;
      // Nobody has waited for an answer.
      expect(asked).toEqual(['blockdev-add']);
    } finally {
      process.kill(world.engine.pid, 'SIGCONT');
    }
    await adopt(world);
    await expectTidy(world);
    await expectShown(await capture(world));
  });

  async function overwrite(path: string, bytes: Uint8Array): Promise<void> {
    await using file = await open(path, 'r+');
    await file.write(bytes, 0, bytes.length, 0);
  }

  test('of too many layers that could not be merged the whole disk is written', async () => {
    const world = await layered(MAX_DISK_LAYERS);
    const snapshot = await capture(world, exec);
    expect(snapshot.manifest.diskLayers).toBeUndefined();
    await expectShown(snapshot);
  });

  const failure = () => Object.assign(new PlatformError('internal', 'EIO: injected'), { code: 'EIO' });

  async function mergeWithFault(world: World, fault: Fault): Promise<boolean> {
    faults.arm(fault);
    await world.server.compactor.compact();
    const reached = faults.disarm() >= fault.call;
    log.lines.length = 0;
    return reached;
  }

  test('every call of a capture may fail after its effect, and the next merge leaves nothing of it', LONG, async () => {
    const world = await start(undefined, inline);
    let call = 1;
    for (; ; call++) {
      await write(world, call, call * CLUSTER, 4096);
      faults.arm({ call, when: 'after', error: failure, mode: 'one' });
      await capture(world).catch(() => undefined);
      if (faults.disarm() < call) break;
      await compacted(world);
    }
    expect(call).toBeGreaterThan(12);
    await compacted(world);
    await expectTidy(world);
    await expectShown(await capture(world));
  });

  test.each<Fault['when']>(['before', 'after'])(
    'every call of a merge may fail, %s its effect: the disk is what it was, and the next one leaves nothing of it',
    LONG,
    async (when) => {
      const world = await layered(5, inline);
      let call = 1;
      for (; ; call++) {
        await addLayers(world, 5, call);
        const reached = await mergeWithFault(world, { call, when, error: failure, mode: 'one' });
        await write(world, 3 + (call % 200), (call % 50) * CLUSTER, 4096);
        await expectWhole(world);
        if (!reached) break;
      }
      expect(call).toBeGreaterThan(12);
      await expectShown(await capture(world));
    },
  );

  test(
    'a server may die at every call of a merge: the next one finds the disk and removes what was left',
    LONG,
    async () => {
      const world = await layered(5, inline);
      let call = 1;
      for (; ; call++) {
        await addLayers(world, 5, call);
        const reached = await mergeWithFault(world, { call, when: 'after', error: failure, mode: 'death' });
        await write(world, 3 + (call % 200), (call % 50) * CLUSTER, 4096);
        await adopt(world);
        await expectTidy(world);
        await expectWhole(world);
        if (!reached) break;
      }
      expect(call).toBeGreaterThan(12);
    },
  );
});
