import { constants } from 'node:fs';
import { chmod, copyFile, link, open } from 'node:fs/promises';
import { resolve } from 'node:path';
import { PlatformError, type SnapshotArtifact } from '@agentenv/core';
import type { StoredSnapshot } from '../backend.ts';

export const MEMORY_BASE = 'memory.base';
export const DISK_BASE = 'disk.raw';

/** Name of a frozen disk layer, the oldest being 0. */
export function diskLayerName(index: number): string {
  return `disk-${index}.qcow2`;
}

/** Name of a memory layer, the oldest being 0. */
export function memoryLayerName(index: number): string {
  return `memory-${index}.layer`;
}

/** Puts a file, or the names in a directory, on the platter. */
export async function syncFile(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

/** Other file system, too many names, or a file system without links. */
function cannotLink(caught: unknown): boolean {
  const code = caught instanceof Error && 'code' in caught ? caught.code : undefined;
  return code === 'EXDEV' || code === 'EMLINK' || code === 'EPERM';
}

/** Gives a file a second name; false where the file system cannot. */
export async function linked(source: string, target: string): Promise<boolean> {
  try {
    await link(source, target);
    return true;
  } catch (caught) {
    if (cannotLink(caught)) return false;
    throw caught;
  }
}

/** Gives a file that nobody changes any more a second name, or copies it where that cannot be; answers which. */
export async function linkOrCopy(source: string, target: string): Promise<'linked' | 'copied'> {
  if (await linked(source, target)) return 'linked';
  await copyFile(source, target, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE);
  // An engine opens its layers anew by their descriptors.
  await chmod(target, 0o644);
  return 'copied';
}

/** Gives a large shared file a second name and answers it, or the first one where that cannot be. */
export async function linkOrKeep(source: string, target: string): Promise<string> {
  return (await linked(source, target)) ? target : source;
}

/** An artifact with its path made absolute. */
function located(directory: string, artifact: SnapshotArtifact): SnapshotArtifact {
  return { ...artifact, path: resolve(directory, artifact.path) };
}

/** The files of a snapshot by what they are for, with absolute paths. */
export interface SnapshotFiles {
  /** Mapped privately by every guest made of the snapshot; never changed. undefined: a capture of the disk alone. */
  readonly memory: SnapshotArtifact | undefined;
  readonly memoryLayers: readonly SnapshotArtifact[];
  /** Raw image below all layers of the writable disk. */
  readonly disk: SnapshotArtifact;
  readonly diskLayers: readonly SnapshotArtifact[];
  readonly vmState: SnapshotArtifact | undefined;
}

export function snapshotFiles({ directory, manifest }: StoredSnapshot): SnapshotFiles {
  const { memory, memoryLayers = [], disk, diskLayers = [], vmState } = manifest;
  return {
    memory: memory === undefined ? undefined : located(directory, memory),
    memoryLayers: memoryLayers.map((layer) => located(directory, layer)),
    disk: located(directory, disk),
    diskLayers: diskLayers.map((layer) => located(directory, layer)),
    vmState: vmState === undefined ? undefined : located(directory, vmState),
  };
}

/** The files of a snapshot with memory. */
export interface LiveFiles extends SnapshotFiles {
  readonly memory: SnapshotArtifact;
  readonly vmState: SnapshotArtifact;
}

/** The files a restore needs; `conflict` when the snapshot is of a disk alone. */
export function liveFiles(snapshot: StoredSnapshot): LiveFiles {
  const files = snapshotFiles(snapshot);
  const { memory, vmState } = files;
  if (memory === undefined || vmState === undefined) {
    throw new PlatformError('conflict', 'the snapshot holds no memory: it can be booted, not restored');
  }
  return { ...files, memory, vmState };
}

/** What of a snapshot a boot reads. */
export function diskFiles(snapshot: StoredSnapshot): SnapshotFiles {
  return { ...snapshotFiles(snapshot), memory: undefined, memoryLayers: [], vmState: undefined };
}

/** Every file of it. */
export function allFiles(files: SnapshotFiles): readonly SnapshotArtifact[] {
  const { memory, memoryLayers, disk, diskLayers, vmState } = files;
  return [memory, ...memoryLayers, disk, ...diskLayers, vmState].filter((file) => file !== undefined);
}
