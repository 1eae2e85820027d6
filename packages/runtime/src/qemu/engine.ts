import { chown, mkdir, open, realpath, rm, writeFile } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { type Clock, PlatformError, type Resources, type SnapshotArtifact } from '@agentenv/core';
import type { RuntimeEnd } from '../backend.ts';
import type { NetworkSlot } from '../network/slot.ts';
import { killProcess } from '../processes.ts';
import { createDiskChain, type DiskChain, linkDiskLayers } from './disk-chain.ts';
import { createDiskCompactor } from './disk-compactor.ts';
import { watchEnd } from './engine-end.ts';
import { type EngineHost, type EngineLayout, SHORT_NAME_LENGTH } from './engine-host.ts';
import type { EngineIdentity } from './engine-identity.ts';
import { type EngineProcess, startEngineProcess } from './engine-process.ts';
import { createMemoryChain, type MemoryChain } from './memory-chain.ts';
import { createOverlay } from './qcow2.ts';
import {
  type Accelerator,
  AGENT_SOCKET,
  DEVICE_STATE,
  ENGINE_FD,
  type EngineStart,
  engineArguments,
  QMP_SOCKET,
  TRANSLATION_CACHE_MIB,
  UPPER_IMAGE,
} from './qemu-args.ts';
import { openQmp, type Qmp } from './qmp.ts';
import { DISK_BASE, linkOrKeep, MEMORY_BASE } from './snapshot-files.ts';

const MIB = 1024 * 1024;
/** Memory of an engine beside its guest's and its translated code: heaps, stacks, buffers of devices. */
const ENGINE_OVERHEAD_MIB = 192;
const ENGINE_OPEN_FILES = 1_024;
/** Engines go first when the host runs out of memory; the server stays. */
const ENGINE_OOM_SCORE = 300;
/** Where control groups cannot weigh engines, being nicer than the server has to do. */
const ENGINE_NICE = 5;
const START_DEADLINE_MS = 30_000;
const CONNECT_POLL_MS = 4;
const EMPTY_MEMORY = 'memory.empty';

/** The files an engine is started on. */
export interface EngineFiles {
  /** Mapped privately, so never changed by the guest; undefined: an empty one, for a guest that boots. */
  readonly memory: string | undefined;
  readonly rootfs: string;
  /** Read-only raw image below the writable disk. */
  readonly disk: string;
  /** Frozen changes upon it, oldest first. */
  readonly diskLayers: readonly SnapshotArtifact[];
}

export interface EngineRequest {
  readonly slot: NetworkSlot;
  readonly resources: Resources;
  readonly start: EngineStart;
  readonly files: EngineFiles;
}

/** A QEMU process of our own: alive until `ended`. Disposing kills it at once and leaves no trace of it. */
export interface Engine extends AsyncDisposable {
  /** Lets go of it; it runs on. */
  abandon(): Promise<void>;
  readonly identity: EngineIdentity;
  readonly qmp: Qmp;
  /** Uid and gid of the process. */
  readonly uid: number;
  readonly agentSocket: string;
  /** Directory of the writable disk, which the engine reaches as its `instance` descriptor. */
  readonly directory: string;
  /** The file mapped as guest memory, as the kernel names it. */
  readonly mapped: string;
  readonly disk: DiskChain;
  readonly memory: MemoryChain;
  /** Shortens the chains of memory and disk in the background, where that is worth it. */
  compact(): void;
  /** Resolves once, when the engine or its guest can no longer run. */
  readonly ended: Promise<RuntimeEnd>;
}

/** An engine this server started. */
export interface StartedEngine extends Engine {
  /** The file it loads its devices from when it waits for a capture; empty until they are known. */
  readonly deviceState: string;
}

function wait(clock: Clock, milliseconds: number): Promise<void> {
  return new Promise((resolve) => {
    clock.timer(milliseconds, resolve);
  });
}

function tryConnect(path: string): Promise<Socket | undefined> {
  return new Promise((resolve) => {
    const socket = connect(path);
    socket.once('connect', () => resolve(socket));
    socket.once('error', () => resolve(undefined));
  });
}

/** An empty memory file for a guest that boots: all of it a hole. */
async function createEmptyMemory(path: string, bytes: number, owner: number): Promise<void> {
  const file = await open(path, 'wx', 0o600);
  try {
    await file.truncate(bytes);
    await file.chown(owner, owner);
  } finally {
    await file.close();
  }
}

function groupArguments(accelerator: Accelerator): string[] {
  const group = accelerator.kind === 'kvm' ? accelerator.group : undefined;
  return group === undefined ? [] : ['--group', String(group)];
}

function launcherArguments(
  host: EngineHost,
  request: EngineRequest,
  directories: EngineDirectories,
  cgroups: readonly string[],
): string[] {
  const { slot, files, start } = request;
  const inherited: [option: string, descriptor: number, name: string][] = [
    ['--tap', ENGINE_FD.tap, slot.tap],
    ['--dir', ENGINE_FD.runtime, directories.sockets],
    ['--dir', ENGINE_FD.instance, directories.instance],
    ['--dir', ENGINE_FD.layers, directories.lower],
    ['--file', ENGINE_FD.memory, directories.memory],
    ['--file', ENGINE_FD.rootfs, files.rootfs],
    ['--file', ENGINE_FD.disk, directories.disk],
  ];
  if (start.kind === 'incoming') {
    inherited.push(['--file', ENGINE_FD.deviceState, directories.deviceState]);
  } else {
    inherited.push(['--file', ENGINE_FD.kernel, host.artifacts.kernel.path]);
    inherited.push(['--file', ENGINE_FD.initramfs, host.artifacts.initramfs.path]);
  }
  return [
    ...['--netns', slot.networkNamespacePath],
    ...['--uid', String(slot.uid), '--gid', String(slot.uid)],
    ...groupArguments(host.accelerator),
    ...['--nofile', String(ENGINE_OPEN_FILES), '--oom', String(ENGINE_OOM_SCORE), '--nice', String(ENGINE_NICE)],
    ...cgroups.flatMap((directory) => ['--cgroup', directory]),
    ...inherited.flatMap(([option, descriptor, name]) => [option, `${descriptor}=${name}`]),
  ];
}

interface OwnDirectories {
  readonly sockets: string;
  readonly instance: string;
  /** Of root's: names of what the engine was started on, which so outlives the snapshot it belongs to. */
  readonly lower: string;
}

/** The directories of the engine with that short name, removed by `undo`, whether they exist or not. */
export function ownDirectories(layout: EngineLayout, short: string, undo: AsyncDisposableStack): OwnDirectories {
  const directories = {
    sockets: join(layout.sockets, short),
    instance: join(layout.instances, short),
    lower: join(layout.layers, short),
  };
  for (const directory of Object.values(directories)) {
    undo.defer(() => rm(directory, { recursive: true, force: true }));
  }
  return directories;
}

interface EngineDirectories extends OwnDirectories {
  readonly layers: readonly SnapshotArtifact[];
  readonly disk: string;
  readonly deviceState: string;
  /** The file to be mapped. */
  readonly memory: string;
}

/** Makes what the engine's uid owns: directories, the writable disk, and an empty memory where none is given. */
async function makeFiles(
  { layout }: EngineHost,
  { slot, resources, files, start }: EngineRequest,
  short: string,
  undo: AsyncDisposableStack,
): Promise<EngineDirectories> {
  const { sockets, instance, lower } = ownDirectories(layout, short, undo);
  for (const directory of [sockets, instance]) {
    await mkdir(directory, { mode: 0o700 });
    await chown(directory, slot.uid, slot.uid);
  }
  // The engine opens its layers by name and cannot list them; others do not come so far.
  await mkdir(lower, { mode: 0o711 });
  const layers = await linkDiskLayers(files.diskLayers, lower);
  const disk = await linkOrKeep(files.disk, join(lower, DISK_BASE));
  await createOverlay(join(instance, UPPER_IMAGE), resources.diskSizeMB * MIB, slot.uid);
  const empty = join(instance, EMPTY_MEMORY);
  if (files.memory === undefined) await createEmptyMemory(empty, resources.memoryMB * MIB, slot.uid);
  const memory = files.memory === undefined ? empty : await linkOrKeep(files.memory, join(lower, MEMORY_BASE));
  const deviceState = join(lower, DEVICE_STATE);
  if (start.kind === 'incoming') await writeFile(deviceState, '', { flag: 'wx', mode: 0o600 });
  return { sockets, instance, lower, layers, disk, deviceState, memory };
}

async function makeCgroups(
  { accelerator, cgroups }: EngineHost,
  name: string,
  { memoryMB }: Resources,
  undo: AsyncDisposableStack,
): Promise<readonly string[]> {
  undo.defer(() => cgroups.remove(name));
  const translation = accelerator.kind === 'tcg' ? TRANSLATION_CACHE_MIB : 0;
  return cgroups.create(name, (memoryMB + translation + ENGINE_OVERHEAD_MIB) * MIB);
}

/** The control socket, or the reason why the process did not come so far. */
async function control(
  engine: EngineProcess,
  path: string,
  clock: Clock,
  signal: AbortSignal | undefined,
): Promise<Qmp> {
  const gone = new AbortController();
  void engine.exited.then((how) => gone.abort(startFailure(how, engine.tail())));
  const either = signal === undefined ? gone.signal : AbortSignal.any([gone.signal, signal]);
  return connectQmp(path, clock, either);
}

/**
 * Starts an engine in its slot's namespace, as the slot's uid, in a session and control group of its own. Resolves when
 * its control socket answers. Rejects with `create_failed` and the engine's own words; nothing is left then.
 */
export async function startEngine(
  host: EngineHost,
  request: EngineRequest,
  signal?: AbortSignal,
): Promise<StartedEngine> {
  const { clock, accelerator } = host;
  const { slot, resources, start } = request;
  signal?.throwIfAborted();
  const uuid = uuidOf(host.rng.bytes(16));
  const short = uuid.replaceAll('-', '').slice(0, SHORT_NAME_LENGTH);
  const name = `${host.layout.namePrefix}${short}`;
  await using undo = new AsyncDisposableStack();
  const directories = await makeFiles(host, request, short, undo);
  const mapped = await realpath(directories.memory);
  const log = host.log.child({ engine: name });
  const memory = undo.use(
    createMemoryChain({
      ...{ directory: directories.lower, layers: [], size: resources.memoryMB * MIB },
      ...{ jobs: host.background, log },
    }),
  );
  const cgroups = await makeCgroups(host, name, resources, undo);
  signal?.throwIfAborted();

  const spec = {
    name,
    uuid,
    accelerator,
    resources,
    mac: slot.guest.mac,
    start,
    diskLayers: directories.layers.length,
  };
  const args = [...launcherArguments(host, request, directories, cgroups), '--', host.enginePath];
  const argv = [host.artifacts.launcher.path, ...args, ...engineArguments(spec)] as const;
  const started = undo.use(await startEngineProcess(host.starter, argv, clock));
  const { pid, startTime, exited, tail } = started;
  const qmp = undo.use(await control(started, join(directories.sockets, QMP_SOCKET), clock, signal));
  // The sockets are bound: from here on nobody but root can put another one in their place.
  await chown(directories.sockets, 0, 0);

  const ended = watchEnd({ qmp, exited, tail, clock, log });
  const disk = createDiskChain({
    ...{ qmp, instance: directories.instance, layerDirectory: directories.lower, base: directories.disk },
    layers: directories.layers.map((known) => ({ path: known.path, known })),
    ...{ owner: slot.uid, bytes: resources.diskSizeMB * MIB },
  });
  const process = { pid, startTime, name, uuid, mapped };
  const engine = engineOf(host, {
    ...{ process, resources, qmp, uid: slot.uid, directories, disk, memory, ended, release: undo.move() },
  });
  return Object.assign(engine, { deviceState: directories.deviceState });
}

/** What a server holds of a running engine, whoever started it. */
export function engineOf(
  host: EngineHost,
  parts: {
    readonly process: Omit<EngineIdentity, 'diskBase'>;
    readonly resources: Resources;
    readonly qmp: Qmp;
    readonly uid: number;
    readonly directories: OwnDirectories;
    readonly disk: DiskChain;
    readonly memory: MemoryChain;
    readonly ended: Promise<RuntimeEnd>;
    readonly release: AsyncDisposableStack;
  },
): Engine {
  const { process, resources, qmp, uid, directories, disk, memory, ended, release } = parts;
  const log = host.log.child({ engine: process.name });
  const bytes = resources.diskSizeMB * MIB;
  const compactor = createDiskCompactor({ disk, bytes, jobs: host.background, log });
  return {
    // The base of the disk may become another one.
    get identity() {
      return { ...process, diskBase: disk.base };
    },
    qmp,
    uid,
    agentSocket: join(directories.sockets, AGENT_SOCKET),
    directory: directories.instance,
    mapped: process.mapped,
    disk,
    memory,
    compact() {
      void memory.compact();
      void compactor.compact();
    },
    ended,
    async abandon() {
      await memory[Symbol.asyncDispose]();
      await compactor[Symbol.asyncDispose]();
      await qmp[Symbol.asyncDispose]();
    },
    async [Symbol.asyncDispose]() {
      const merging = compactor[Symbol.asyncDispose]();
      // First of all: a merge may wait for a disk or for the engine itself.
      await killProcess(process);
      await merging;
      await release.disposeAsync();
    },
  };
}

function startFailure(how: string, words: string): PlatformError {
  return new PlatformError('create_failed', 'the virtual machine could not be started', { details: { how, words } });
}

function uuidOf(bytes: Uint8Array): string {
  const hex = Buffer.from(bytes).toString('hex');
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-');
}

export async function connectQmp(path: string, clock: Clock, signal: AbortSignal | undefined): Promise<Qmp> {
  const deadline = clock.monotonic() + START_DEADLINE_MS;
  for (;;) {
    signal?.throwIfAborted();
    const socket = await tryConnect(path);
    if (socket !== undefined) return openQmp(socket, clock, signal);
    if (clock.monotonic() > deadline) {
      throw new PlatformError('create_failed', 'the virtual machine did not open its control socket');
    }
    await wait(clock, CONNECT_POLL_MS);
  }
}
