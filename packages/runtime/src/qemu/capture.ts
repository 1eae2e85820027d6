import { readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import type { CaptureKind, Resources, SnapshotArtifact, SnapshotManifest } from '@agentenv/core';
import type { RootFilesystem, StoredSnapshot } from '../backend.ts';
import type { Exec } from '../exec.ts';
import { all } from './all-settled.ts';
import { type CapturedFile, saveDevices, saveDisk, saveMemory } from './capture-parts.ts';
import type { Engine } from './engine.ts';
import type { EngineHost } from './engine-host.ts';
import type { MachineOrigin } from './engine-identity.ts';
import { hostFault } from './host-fault.ts';
import { syncFile } from './snapshot-files.ts';
import { digestArtifact } from './snapshot-integrity.ts';

export const BACKEND_NAME = 'qemu';
const MANIFEST = 'manifest.json';
/** The part of a capture that is left out. */
const NOTHING = Promise.resolve(undefined);

export interface CaptureSource {
  /** `disk`: neither devices nor memory. */
  readonly contents: CaptureKind;
  readonly engine: Engine;
  readonly resources: Resources;
  readonly rootfs: RootFilesystem;
  /** What the engine was started on: the capture holds what differs from it. Undefined: a capture of everything. */
  readonly origin: MachineOrigin | undefined;
  /** Of the engine. */
  readonly fingerprint: Readonly<Record<string, string>>;
  /** Key with which the captured guest answers its first resync. */
  readonly channelKey: Uint8Array;
  /** Called once everything is copied, before it is on the platter: from then on the guest may go on. */
  readonly onCopied?: () => Promise<void>;
}

/**
 * Writes a stopped engine's guest into an empty directory: devices, memory and disk at the same time, or the disk alone,
 * and the manifest last, all of it on the platter. The engine stays stopped. What was written is removed on failure, `no_space` when the
 * disk is full.
 */
export async function captureEngine(
  host: EngineHost,
  source: CaptureSource,
  directory: string,
  exec: Exec,
  signal?: AbortSignal,
): Promise<StoredSnapshot> {
  const { resources, rootfs, onCopied } = source;
  const written = new Set<string>([join(directory, `${MANIFEST}.new`), join(directory, MANIFEST)]);
  const target = (name: string): string => {
    const path = join(directory, name);
    written.add(path);
    return path;
  };

  /** Puts a file on the platter and finds out its digest, at the same time where both only read it. */
  async function settle({ path, name, virtualSize, known }: CapturedFile): Promise<SnapshotArtifact> {
    const size = virtualSize === undefined ? {} : { virtualSize };
    if (known !== undefined) return { ...known, path: name };
    const synced = syncFile(path);
    // Where a sparse file has its data is only certain once it was written back.
    if (virtualSize !== undefined) await synced;
    const [digest] = await all([digestArtifact(path, virtualSize, { memory: host.memory, exec }, signal), synced]);
    return { path: name, size: digest.bytes, ...size, sha256: digest.sha256 };
  }

  await using below = source.engine.memory.borrow();
  try {
    const context = { host, source, target, exec, memoryLayers: below.layers };
    const full = source.contents === 'full';
    const [vmState, memory, disk] = await all([
      full ? saveDevices(context, signal) : NOTHING,
      full ? saveMemory(context, signal) : NOTHING,
      saveDisk(context, signal),
    ]);
    signal?.throwIfAborted();
    await onCopied?.();
    const settleAll = (files: readonly CapturedFile[]) => all(files.map(settle));
    const [settledState, settledMemory, memoryLayers, settledDisk, diskLayers] = await all([
      vmState === undefined ? NOTHING : settle(vmState),
      memory === undefined ? NOTHING : settle(memory.base),
      memory === undefined ? settleAll([]) : memory.writeLayers().then(settleAll),
      settle(disk.base),
      settleAll(disk.layers),
    ]);
    signal?.throwIfAborted();
    const manifest: SnapshotManifest = {
      formatVersion: 1,
      backend: BACKEND_NAME,
      fingerprint: source.fingerprint,
      resources,
      ...(settledState === undefined ? {} : { vmState: settledState }),
      ...(settledMemory === undefined ? {} : { memory: settledMemory }),
      rootfs: { path: rootfs.path, size: (await stat(rootfs.path)).size, sha256: rootfs.digest },
      disk: settledDisk,
      ...(memoryLayers.length === 0 ? {} : { memoryLayers }),
      ...(diskLayers.length === 0 ? {} : { diskLayers }),
      channelKey: full ? Buffer.from(source.channelKey).toString('hex') : '',
      createdAt: new Date(host.clock.now()).toISOString(),
    };
    await writeManifest(directory, manifest);
    for (const [index, { own }] of disk.layers.entries()) {
      const artifact = diskLayers[index];
      if (own !== undefined && artifact !== undefined) source.engine.disk.learn(own, artifact);
    }
    await below.follow(memoryLayers.map((layer) => ({ ...layer, path: resolve(directory, layer.path) })));
    return { directory, manifest };
  } catch (caught) {
    await Promise.all([...written].map((path) => rm(path, { force: true })));
    throw hostFault(caught, 'the capture failed');
  }
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
