import { constants } from 'node:fs';
import { chmod, open, rename, rm, statfs, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { PlatformError, type SnapshotArtifact } from '@agentenv/core';
import type { Exec } from '../exec.ts';
import type { CaptureSource } from './capture.ts';
import type { FrozenLayer } from './disk-chain.ts';
import type { Engine } from './engine.ts';
import type { EngineHost } from './engine-host.ts';
import { copySparse, flattenDisk } from './image-tool.ts';
import { MAX_MEMORY_LAYERS, type MemoryLayer } from './memory-chain.ts';
import { DEVICE_STATE, ENGINE_FD, fdPath, MAX_DISK_LAYERS } from './qemu-args.ts';
import { DISK_BASE, diskLayerName, linkOrCopy, linkOrKeep, MEMORY_BASE, memoryLayerName } from './snapshot-files.ts';

const MIB = 1024 * 1024;
/** Every engine's uid maps this file; QEMU before 8.2 opens it for writing even so. The directory keeps others out. */
const MEMORY_MODE = 0o666;
const DEVICE_STATE_DEADLINE_MS = 20_000;
/** Ten kilobytes are usual. */
const MAX_DEVICE_STATE = 16 * MIB;
/** With less the device state may be what did not fit. */
const ROOM_FOR_DEVICE_STATE = MIB;
/** Where more of the memory changed, a base of its own is as small and faster to restore: it is mapped, not written. */
const MAX_LAYER_SHARE = 0.5;
/** Everything that differs from the base, until it is reduced to what differs from the layers below. */
const MEMORY_COPY = 'memory.copy';

/** A file of a capture, complete but perhaps not on the platter yet. */
export interface CapturedFile {
  /** Absolute. */
  readonly path: string;
  /** How the manifest names it. */
  readonly name: string;
  /** Size of what a sparse file stands for; undefined for files that are whole. */
  readonly virtualSize?: number;
  /** The engine's name of it, of a layer that is the engine's too. */
  readonly own?: string;
  /** Of a file that is known already: it was captured, hashed and synced before. */
  readonly known?: SnapshotArtifact;
}

/** Something below and what changed upon it, oldest first. */
export interface CapturedLayers {
  readonly base: CapturedFile;
  readonly layers: readonly CapturedFile[];
}

/** Captured memory: what lies upon the base is still to be written, while the guest may go on already. */
export interface CapturedMemory {
  readonly base: CapturedFile;
  /** Oldest first. Called once. */
  readonly writeLayers: () => Promise<readonly CapturedFile[]>;
}

export interface CaptureContext {
  readonly host: EngineHost;
  readonly source: CaptureSource;
  readonly exec: Exec;
  /** Path of a file of the capture; noted, so that a failure removes it. */
  readonly target: (name: string) => string;
  /** What was captured of the memory before, oldest first. */
  readonly memoryLayers: readonly MemoryLayer[];
}

/** Reads a file the engine wrote; one that was taken over must not make us read another one. */
async function readEngineFile(path: string, owner: number): Promise<Buffer> {
  const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const { uid, nlink, size, mode } = await file.stat();
    const regular = (mode & constants.S_IFMT) === constants.S_IFREG;
    if (!regular || uid !== owner || nlink !== 1 || size > MAX_DEVICE_STATE) {
      throw new PlatformError('create_failed', 'the engine wrote no valid device state');
    }
    return await file.readFile();
  } finally {
    await file.close();
  }
}

/** For the engine a full disk is an I/O error like every other. */
async function requireRoom(directory: string, cause: unknown): Promise<void> {
  const { bavail, bsize } = await statfs(directory);
  if (bavail * bsize >= ROOM_FOR_DEVICE_STATE) return;
  throw new PlatformError('no_space', "the host's data disk is full", { cause });
}

export async function saveDevices(
  { source: { engine }, target }: CaptureContext,
  signal: AbortSignal | undefined,
): Promise<CapturedFile> {
  const filename = fdPath(ENGINE_FD.instance, DEVICE_STATE);
  // `live: false` leaves the disks with the engine, so that it can go on afterwards.
  const deadline = { deadlineMs: DEVICE_STATE_DEADLINE_MS };
  try {
    await engine.qmp.execute('xen-save-devices-state', { filename, live: false }, deadline, signal);
  } catch (caught) {
    if (PlatformError.fromUnknown(caught).code === 'create_failed') await requireRoom(engine.directory, caught);
    throw caught;
  }
  const written = join(engine.directory, DEVICE_STATE);
  const path = target(DEVICE_STATE);
  await writeFile(path, await readEngineFile(written, engine.uid), { mode: 0o644 });
  await rm(written);
  return { path, name: DEVICE_STATE };
}

/** A file the engine was started on, under a name of the capture's own where the file system allows it. */
async function keepBase(path: string, target: string, known: SnapshotArtifact): Promise<CapturedFile> {
  const kept = await linkOrKeep(path, target);
  return { path: kept, name: kept === target ? basename(target) : kept, known };
}

function memoryOf({ identity: { pid }, mapped }: Engine, memoryMB: number) {
  return { pid, mapped, size: memoryMB * MIB };
}

/** Names of the capture's own for frozen layers. */
async function keepLayers(
  layers: readonly FrozenLayer[],
  nameOf: (index: number) => string,
  target: (name: string) => string,
): Promise<readonly CapturedFile[]> {
  const kept: CapturedFile[] = [];
  for (const [index, { path: own, known }] of layers.entries()) {
    const name = nameOf(index);
    const path = target(name);
    const how = await linkOrCopy(own, path);
    kept.push({ path, name, own, ...(known === undefined || how === 'copied' ? {} : { known }) });
  }
  return kept;
}

/**
 * Layers of which the newest is what `copy` shows differently from the former ones. Where that cannot be written, such as upon
 * one that cannot be read any more, `copy` alone, which holds everything that differs from the base.
 */
async function reduceCopy(context: CaptureContext, base: string, copy: string): Promise<readonly CapturedFile[]> {
  const { host, source, target, memoryLayers } = context;
  const name = memoryLayerName(memoryLayers.length);
  const path = target(name);
  try {
    const kept = await keepLayers(memoryLayers, memoryLayerName, target);
    const files = { source: copy, below: kept.map((layer) => layer.path), base, target: path };
    await host.memory.run({ kind: 'reduce-layer', ...files, size: source.resources.memoryMB * MIB });
    await rm(copy);
    return [...kept, { path, name }];
  } catch (caught) {
    host.log.warn(
      { engine: source.engine.identity.name, error: PlatformError.fromUnknown(caught) },
      'a capture of memory goes without the layers of former ones',
    );
    const alone = memoryLayerName(0);
    for (let index = 0; index <= memoryLayers.length; index++)
      await rm(target(memoryLayerName(index)), { force: true });
    await rename(copy, target(alone));
    return [{ path: target(alone), name: alone }];
  }
}

/**
 * Copies what changed against the memory the engine maps, of which the layer is what differs from those below; or all of
 * the memory, when most of it changed or nothing is below.
 */
export async function saveMemory(context: CaptureContext, signal: AbortSignal | undefined): Promise<CapturedMemory> {
  const { host, source, exec, target, memoryLayers } = context;
  const { engine, origin } = source;
  const memory = memoryOf(engine, source.resources.memoryMB);
  const below = origin?.memory;
  if (below !== undefined) {
    const alone = memoryLayers.length === 0 || memoryLayers.length >= MAX_MEMORY_LAYERS;
    const name = alone ? memoryLayerName(0) : MEMORY_COPY;
    const path = target(name);
    const limit = memory.size * MAX_LAYER_SHARE;
    const { bytes } = await host.memory.run({ kind: 'save-layer', ...memory, target: path, limit });
    if (bytes > 0) {
      const base = await keepBase(engine.mapped, target(MEMORY_BASE), below);
      const writeLayers = alone ? async () => [{ path, name }] : () => reduceCopy(context, engine.mapped, path);
      return { base, writeLayers };
    }
  }
  const path = target(MEMORY_BASE);
  if (below !== undefined) await copySparse(engine.mapped, path, exec, signal);
  await host.memory.run({ kind: 'dump-memory', ...memory, target: path });
  await chmod(path, MEMORY_MODE);
  return { base: { path, name: MEMORY_BASE, virtualSize: memory.size }, writeLayers: async () => [] };
}

/**
 * Freezes the overlay in use and keeps all layers. The whole disk is written when nothing is below it, or when layers could
 * not be merged so often that there are too many of them.
 */
export async function saveDisk(context: CaptureContext, signal: AbortSignal | undefined): Promise<CapturedLayers> {
  const { host, source, exec, target } = context;
  const { engine, origin, resources } = source;
  const { disk } = engine;
  using _held = await disk.hold(signal);
  if (origin === undefined || disk.layers.length >= MAX_DISK_LAYERS) {
    const path = target(DISK_BASE);
    const bytes = resources.diskSizeMB * MIB;
    const { base: lower, top: upper } = disk;
    const layers = disk.layers.map((layer) => layer.path);
    const launcher = host.artifacts.launcher.path;
    await flattenDisk({ launcher, owner: engine.uid, upper, layers, lower, target: path, bytes }, exec, signal);
    return { base: { path, name: DISK_BASE, virtualSize: bytes }, layers: [] };
  }
  await disk.freeze();
  const layers = await keepLayers(disk.layers, diskLayerName, target);
  return { base: await keepBase(disk.base, target(DISK_BASE), origin.disk), layers };
}
