import { constants } from 'node:fs';
import { chmod, open, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError, type Resources, type SnapshotArtifact, type SnapshotManifest } from '@agentenv/core';
import type { RootFilesystem, StoredSnapshot } from '../backend.ts';
import type { Exec } from '../exec.ts';
import type { Engine } from './engine.ts';
import type { EngineHost } from './engine-host.ts';
import { copySparse, flattenDisk } from './image-tool.ts';
import { DEVICE_STATE, ENGINE_FD, UPPER_IMAGE } from './qemu-args.ts';
import { digestArtifact } from './snapshot-integrity.ts';

const MIB = 1024 * 1024;
export const BACKEND_NAME = 'qemu';
const MANIFEST = 'manifest.json';
const MEMORY = 'memory.base';
const DISK = 'disk.raw';
/** Every engine's uid maps this file; QEMU before 8.2 opens it for writing even so. The directory keeps others out. */
const MEMORY_MODE = 0o666;
const DEVICE_STATE_DEADLINE_MS = 20_000;
/** Ten kilobytes are usual. */
const MAX_DEVICE_STATE = 16 * MIB;

export interface CaptureSource {
  readonly engine: Engine;
  readonly resources: Resources;
  readonly rootfs: RootFilesystem;
  /** Key with which the captured guest answers its first resync. */
  readonly channelKey: Uint8Array;
}

async function syncFile(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
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

async function saveDevices(engine: Engine, target: string, signal: AbortSignal | undefined): Promise<void> {
  const filename = `/proc/self/fd/${ENGINE_FD.instance}/${DEVICE_STATE}`;
  // `live: false` leaves the disks with the engine, so that it can go on afterwards.
  await engine.qmp.execute(
    'xen-save-devices-state',
    { filename, live: false },
    { deadlineMs: DEVICE_STATE_DEADLINE_MS },
    signal,
  );
  const written = join(engine.directory, DEVICE_STATE);
  await writeFile(target, await readEngineFile(written, engine.uid), { mode: 0o644 });
  await rm(written);
}

async function saveMemory(host: EngineHost, source: CaptureSource, target: string, exec: Exec, signal?: AbortSignal) {
  const { engine, resources } = source;
  if (engine.files.memory !== undefined) await copySparse(engine.files.memory, target, exec, signal);
  await host.memory.run({
    kind: 'dump-memory',
    pid: engine.identity.pid,
    mapped: engine.mapped,
    size: resources.memoryMB * MIB,
    target,
  });
  await chmod(target, MEMORY_MODE);
}

/**
 * Writes a stopped engine's guest into an empty directory: devices, memory, disk, each complete in itself, and the
 * manifest last, all of it on the platter. The engine stays stopped. What was written is removed on failure.
 */
export async function captureEngine(
  host: EngineHost,
  source: CaptureSource,
  directory: string,
  exec: Exec,
  signal?: AbortSignal,
): Promise<StoredSnapshot> {
  const { engine, resources, rootfs } = source;
  const paths = { state: join(directory, DEVICE_STATE), memory: join(directory, MEMORY), disk: join(directory, DISK) };
  await using undo = new AsyncDisposableStack();
  for (const path of [...Object.values(paths), join(directory, MANIFEST)]) {
    undo.defer(() => rm(path, { force: true }));
  }
  const saved = await Promise.allSettled([
    saveDevices(engine, paths.state, signal),
    saveMemory(host, source, paths.memory, exec, signal),
    flattenDisk(
      {
        launcher: host.artifacts.launcher.path,
        owner: engine.uid,
        upper: join(engine.directory, UPPER_IMAGE),
        lower: engine.files.disk,
        target: paths.disk,
        bytes: resources.diskSizeMB * MIB,
      },
      exec,
      signal,
    ),
  ]);
  const failure = saved.find((result) => result.status === 'rejected');
  if (failure !== undefined) throw PlatformError.fromUnknown(failure.reason, 'the capture failed');

  async function artifact(path: string, name: string, virtualSize?: number): Promise<SnapshotArtifact> {
    await syncFile(path);
    const { sha256, bytes } = await digestArtifact(path, virtualSize, host.memory, signal);
    return { path: name, size: bytes, ...(virtualSize === undefined ? {} : { virtualSize }), sha256 };
  }

  const manifest: SnapshotManifest = {
    formatVersion: 1,
    backend: BACKEND_NAME,
    fingerprint: host.fingerprint,
    resources,
    vmState: await artifact(paths.state, DEVICE_STATE),
    memory: await artifact(paths.memory, MEMORY, resources.memoryMB * MIB),
    rootfs: { path: rootfs.path, size: (await stat(rootfs.path)).size, sha256: rootfs.digest },
    disk: await artifact(paths.disk, DISK, resources.diskSizeMB * MIB),
    channelKey: Buffer.from(source.channelKey).toString('hex'),
    createdAt: new Date(host.clock.now()).toISOString(),
  };
  await writeManifest(directory, manifest);
  undo.move();
  return { directory, manifest };
}

async function writeManifest(directory: string, manifest: SnapshotManifest): Promise<void> {
  const path = join(directory, MANIFEST);
  // The channel key is in it.
  await writeFile(`${path}.new`, `${JSON.stringify(manifest, undefined, 2)}\n`, { mode: 0o600, flush: true });
  await rename(`${path}.new`, path);
  await syncFile(directory);
}

/** The manifest of a directory; undefined when no complete capture is there. */
export async function readManifest(directory: string): Promise<SnapshotManifest | undefined> {
  try {
    return JSON.parse(await readFile(join(directory, MANIFEST), 'utf8'));
  } catch {
    // Missing, or cut short by a crash of a host without working flushes: both mean there is no capture.
    return undefined;
  }
}
