import { createHash } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { type Log, PlatformError, type SnapshotArtifact, type SnapshotManifest } from '@agentenv/core';
import type { StoredSnapshot } from '../backend.ts';
import { dataExtents } from './image-tool.ts';
import type { MemoryThread } from './memory-thread.ts';

/**
 * Trust in captured files. QEMU before 8.2 opens the memory it maps privately for writing, so an engine that was taken
 * over could change what every other sandbox of that template reads. Each file is hashed before its first use by this
 * server; after that its status (inode, size, times of change, which only root can set back) is compared at every use.
 */
export interface SnapshotIntegrity {
  /** Rejects with `create_failed` when a file is not what the manifest says; from then on the snapshot is refused. */
  verify(snapshot: StoredSnapshot): Promise<void>;
  /** Takes the files of a capture this server just made as they are. */
  trust(snapshot: StoredSnapshot): Promise<void>;
  /** Compares the status of every file in use; returns the directories that are refused from now on. */
  sweep(): Promise<readonly string[]>;
  forget(directory: string): void;
}

interface Trusted {
  readonly snapshot: StoredSnapshot;
  /** Status of each file when it was hashed. */
  readonly marks: ReadonlyMap<string, string>;
}

async function markOf(path: string): Promise<string> {
  try {
    const { ino, size, mtimeNs, ctimeNs } = await stat(path, { bigint: true });
    return [ino, size, mtimeNs, ctimeNs].join(':');
  } catch {
    // A file that is gone differs from every file that was there.
    return 'missing';
  }
}

function artifactsOf({ manifest, directory }: StoredSnapshot): [path: string, artifact: SnapshotArtifact][] {
  const { memory, disk, vmState } = manifest;
  return [memory, disk, vmState].map((artifact) => [join(directory, artifact.path), artifact]);
}

/** Digest of a captured file: of its contents when it is small and whole, of its data pages when it is sparse. */
export async function digestArtifact(
  path: string,
  virtualSize: number | undefined,
  memory: MemoryThread,
  signal?: AbortSignal,
): Promise<{ readonly sha256: string; readonly bytes: number }> {
  if (virtualSize === undefined) {
    const content = await readFile(path, { signal });
    return { sha256: createHash('sha256').update(content).digest('hex'), bytes: content.length };
  }
  const extents = await dataExtents(path, signal);
  return memory.run({ kind: 'digest', path, size: virtualSize, extents });
}

export function createSnapshotIntegrity(options: {
  readonly memory: MemoryThread;
  readonly log: Log;
}): SnapshotIntegrity {
  const { memory, log } = options;
  const trusted = new Map<string, Trusted>();
  const verifying = new Map<string, Promise<void>>();
  const refused = new Set<string>();

  function refuse(directory: string, file: string): PlatformError {
    refused.add(directory);
    trusted.delete(directory);
    log.error({ directory, file }, 'a captured file is not what its manifest says; the snapshot is retired');
    return new PlatformError('create_failed', `the snapshot is damaged: ${file}`, { details: { directory } });
  }

  async function marksOf(snapshot: StoredSnapshot): Promise<ReadonlyMap<string, string>> {
    const marks = artifactsOf(snapshot).map(async ([path]) => [path, await markOf(path)] as const);
    return new Map(await Promise.all(marks));
  }

  async function changedFile({ snapshot, marks }: Trusted): Promise<string | undefined> {
    for (const [path, artifact] of artifactsOf(snapshot)) {
      if ((await markOf(path)) !== marks.get(path)) return artifact.path;
    }
    return undefined;
  }

  async function hashAll(snapshot: StoredSnapshot): Promise<void> {
    // The status is taken before the contents are read: a change in between shows at the next comparison.
    const marks = await marksOf(snapshot);
    for (const [path, artifact] of artifactsOf(snapshot)) {
      const digest = await digestArtifact(path, artifact.virtualSize, memory).catch((caught: unknown) => {
        log.error({ err: caught, path }, 'a captured file could not be read');
        return undefined;
      });
      if (digest?.sha256 !== artifact.sha256) throw refuse(snapshot.directory, artifact.path);
    }
    trusted.set(snapshot.directory, { snapshot, marks });
  }

  function sameCapture(known: SnapshotManifest, asked: SnapshotManifest): boolean {
    return known.memory.sha256 === asked.memory.sha256 && known.vmState.sha256 === asked.vmState.sha256;
  }

  return {
    async verify(snapshot) {
      const { directory, manifest } = snapshot;
      const known = trusted.get(directory);
      if (known !== undefined && sameCapture(known.snapshot.manifest, manifest)) {
        const changed = await changedFile(known);
        if (changed === undefined) return;
        throw refuse(directory, changed);
      }
      if (refused.has(directory)) {
        throw new PlatformError('create_failed', 'the snapshot is damaged and was retired', { details: { directory } });
      }
      const running = verifying.get(directory) ?? hashAll(snapshot).finally(() => verifying.delete(directory));
      verifying.set(directory, running);
      await running;
    },
    async trust(snapshot) {
      refused.delete(snapshot.directory);
      trusted.set(snapshot.directory, { snapshot, marks: await marksOf(snapshot) });
    },
    async sweep() {
      const lost: string[] = [];
      for (const [directory, entry] of trusted) {
        const changed = await changedFile(entry);
        if (changed === undefined) continue;
        refuse(directory, changed);
        lost.push(directory);
      }
      return lost;
    },
    forget(directory) {
      trusted.delete(directory);
      refused.delete(directory);
    },
  };
}
