import { mkdir, open, readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { type CaptureId, PlatformError, type SnapshotManifest } from '@agentenv/core';
import { decodeManifest, MANIFEST_FILE } from './manifest-codec.ts';

/** A complete capture on this host. */
export interface StoredCapture {
  readonly directory: string;
  readonly manifest: SnapshotManifest;
}

/**
 * Where captures of sandboxes are kept: a directory each, named by its id. The ledger says which of them are needed; one
 * that no record names is left over from something that did not finish.
 */
export interface CaptureStore {
  /** Makes the empty directory a backend captures into; its entry is on disk when this resolves. No space: `no_space`. */
  allocate(id: CaptureId): Promise<string>;
  /** Throws `internal` when it is missing, not complete or not of a format this version reads. */
  open(id: CaptureId): Promise<StoredCapture>;
  /** Absent is fine. */
  remove(id: CaptureId): Promise<void>;
  /** The names of all, complete or not. */
  list(): Promise<ReadonlySet<string>>;
}

function code(error: unknown): unknown {
  return error instanceof Error && 'code' in error ? error.code : undefined;
}

async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, 'r');
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}

/** The captures below `root`, which is made when it is not there; nobody but the server's user may enter it. */
export async function openCaptureStore(options: { readonly root: string }): Promise<CaptureStore> {
  const { root } = options;
  await mkdir(root, { recursive: true, mode: 0o700 });

  return {
    async allocate(id) {
      const directory = join(root, id);
      try {
        await mkdir(directory, { mode: 0o700 });
        await syncDirectory(root);
      } catch (error) {
        if (code(error) === 'ENOSPC' || code(error) === 'EDQUOT') {
          throw new PlatformError('no_space', 'no space left for captures on the data disk', { cause: error });
        }
        throw new PlatformError('internal', 'no directory could be made for the capture', { cause: error });
      }
      return directory;
    },
    async open(id) {
      const directory = join(root, id);
      let text: string;
      try {
        text = await readFile(join(directory, MANIFEST_FILE), 'utf8');
      } catch (error) {
        throw new PlatformError('internal', 'the stored state cannot be read', {
          details: { directory },
          cause: error,
        });
      }
      return { directory, manifest: decodeManifest(text) };
    },
    remove: (id) => rm(join(root, id), { recursive: true, force: true }),
    list: async () => new Set(await readdir(root)),
  };
}
