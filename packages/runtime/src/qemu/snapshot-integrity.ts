import { stat } from 'node:fs/promises';
import { type Log, PlatformError, type SnapshotArtifact } from '@agentenv/core';
import type { StoredSnapshot } from '../backend.ts';
import type { Exec } from '../exec.ts';
import { dataExtents } from './image-tool.ts';
import type { MemoryThread } from './memory-thread.ts';
import { allFiles, diskFiles, snapshotFiles } from './snapshot-files.ts';

/**
 * Trust in captured files. QEMU before 8.2 opens the memory it maps privately for writing, so an engine that was taken
 * over could change what every other sandbox of that template reads. Each file is hashed before its first use by this
 * server; after that its status (inode, size, time of change, which only root can set back) is compared at every use.
 * Snapshots share files under several names, so a file is known by its inode.
 */
export interface SnapshotIntegrity {
  /** Rejects with `create_failed` when a file is not what the manifest says; from then on the snapshot is refused. */
  verify(snapshot: StoredSnapshot): Promise<void>;
  /** The same of what a boot reads of it; memory that is damaged neither matters nor is noticed. */
  verifyDisk(snapshot: StoredSnapshot): Promise<void>;
  /** Takes the files of a capture this server just made as they are; those it shares with others stay what they were. */
  trust(snapshot: StoredSnapshot): Promise<void>;
  /** Compares the status of every file in use; returns the directories that are refused from now on. */
  sweep(): Promise<readonly string[]>;
}

interface Status {
  /** Which file it is, whatever its names. */
  readonly inode: string;
  /** Differs once its contents were changed. */
  readonly mark: string;
}

interface TrustedFile {
  readonly path: string;
  readonly sha256: string | undefined;
  readonly mark: string;
}

/** Undefined for a file that is gone, which differs from every file that was there. Rejects when that cannot be found out. */
async function statusOf(path: string): Promise<Status | undefined> {
  try {
    const { dev, ino, size, mtimeNs } = await stat(path, { bigint: true });
    return { inode: `${dev}:${ino}`, mark: `${size}:${mtimeNs}` };
  } catch (caught) {
    const code = caught instanceof Error && 'code' in caught ? caught.code : undefined;
    if (code === 'ENOENT' || code === 'ENOTDIR') return undefined;
    throw unreadable(path, caught);
  }
}

/** A file that cannot be read now may be as it was: its snapshot is not retired. */
function unreadable(path: string, cause: unknown): PlatformError {
  return new PlatformError('create_failed', 'a file of the snapshot could not be read', { cause, details: { path } });
}

function artifactsOf(snapshot: StoredSnapshot): readonly SnapshotArtifact[] {
  return allFiles(snapshotFiles(snapshot));
}

/** What digests are made with. */
export interface DigestTools {
  readonly memory: MemoryThread;
  readonly exec: Exec;
}

/** Digest of a captured file: of its data pages when it is sparse, of everything in it otherwise. */
export async function digestArtifact(
  path: string,
  virtualSize: number | undefined,
  { memory, exec }: DigestTools,
  signal?: AbortSignal,
): Promise<{ readonly sha256: string; readonly bytes: number }> {
  if (virtualSize === undefined) return memory.run({ kind: 'hash-file', path });
  const extents = await dataExtents(path, exec, signal);
  return memory.run({ kind: 'digest', path, size: virtualSize, extents });
}

export function createSnapshotIntegrity(options: DigestTools & { readonly log: Log }): SnapshotIntegrity {
  const { log } = options;
  /** By inode. */
  const trusted = new Map<string, TrustedFile>();
  const hashing = new Map<string, Promise<string>>();
  const inUse = new Map<string, StoredSnapshot>();
  /** Directories that are refused until this server ends, with the damaged file. */
  const refused = new Map<string, string>();

  const damage = (directory: string, file: string) =>
    new PlatformError('create_failed', `the snapshot is damaged: ${file}`, { details: { directory } });

  function refuse(directory: string, { path }: SnapshotArtifact): PlatformError {
    const file = path.startsWith(`${directory}/`) ? path.slice(directory.length + 1) : path;
    refused.set(directory, file);
    inUse.delete(directory);
    log.error({ directory, file }, 'a captured file is not what its manifest says; the snapshot is retired');
    return damage(directory, file);
  }

  /** Digest of the file now; callers at the same time share the reading. */
  function hash(inode: string, { path, virtualSize }: SnapshotArtifact): Promise<string> {
    const running = hashing.get(inode);
    if (running !== undefined) return running;
    const reading = digestArtifact(path, virtualSize, options)
      .then(({ sha256 }) => sha256)
      .catch((caught: unknown) => {
        throw unreadable(path, caught);
      })
      .finally(() => hashing.delete(inode));
    hashing.set(inode, reading);
    return reading;
  }

  /** What is known of a file, if it is the one the manifest means. */
  function knownFile(status: Status, { sha256 }: SnapshotArtifact): TrustedFile | undefined {
    const known = trusted.get(status.inode);
    return known?.sha256 === sha256 ? known : undefined;
  }

  async function isIntact(artifact: SnapshotArtifact): Promise<boolean> {
    // The status is taken before the contents are read: a change in between shows at the next comparison.
    const status = await statusOf(artifact.path);
    if (status === undefined) return false;
    // Another mark is a change, or another file with the inode of one that is gone: the contents decide.
    if (knownFile(status, artifact)?.mark === status.mark) return true;
    if ((await hash(status.inode, artifact)) !== artifact.sha256) return false;
    trusted.set(status.inode, { path: artifact.path, sha256: artifact.sha256, mark: status.mark });
    return true;
  }

  async function damagedFile(artifacts: readonly SnapshotArtifact[]): Promise<SnapshotArtifact | undefined> {
    const intact = await Promise.all(artifacts.map(isIntact));
    return artifacts.find((_, index) => intact[index] === false);
  }

  /** Forgets files that are gone: their inodes will be others'. */
  async function forgetRemoved(): Promise<void> {
    for (const [inode, { path }] of trusted) {
      if ((await statusOf(path))?.inode !== inode) trusted.delete(inode);
    }
  }

  return {
    async verify(snapshot) {
      const { directory } = snapshot;
      const retired = refused.get(directory);
      if (retired !== undefined) throw damage(directory, retired);
      const damaged = await damagedFile(artifactsOf(snapshot));
      if (damaged !== undefined) throw refuse(directory, damaged);
      inUse.set(directory, snapshot);
    },
    async verifyDisk(snapshot) {
      const { directory } = snapshot;
      const damaged = await damagedFile(allFiles(diskFiles(snapshot)));
      if (damaged !== undefined) throw refuse(directory, damaged);
    },
    async trust(snapshot) {
      refused.delete(snapshot.directory);
      for (const artifact of artifactsOf(snapshot)) {
        // What is not known yet is read before it is used.
        const status = await statusOf(artifact.path).catch(() => undefined);
        if (status === undefined || knownFile(status, artifact) !== undefined) continue;
        trusted.set(status.inode, { path: artifact.path, sha256: artifact.sha256, mark: status.mark });
      }
    },
    async sweep() {
      const lost: string[] = [];
      for (const [directory, snapshot] of inUse) {
        try {
          if ((await statusOf(directory)) === undefined) {
            // Its owner removed it: there is nothing left to be used.
            inUse.delete(directory);
            continue;
          }
          const damaged = await damagedFile(artifactsOf(snapshot));
          if (damaged === undefined) continue;
          refuse(directory, damaged);
          lost.push(directory);
        } catch (error) {
          // The next use or sweep looks again.
          log.warn({ directory, error: PlatformError.fromUnknown(error) }, 'a captured file could not be checked');
        }
      }
      await forgetRemoved();
      return lost;
    },
  };
}
