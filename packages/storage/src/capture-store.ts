import { join } from 'node:path';
import { type CaptureId, PlatformError, type SnapshotManifest } from '@agentenv/core';
import { type CaptureFiles, HOST_FILES } from './capture-files.ts';
import { decodeManifest, digestManifest, FIRST_MANIFEST_FILE, MANIFEST_FILE } from './manifest-codec.ts';

/** A complete capture on this host. */
export interface StoredCapture {
  readonly directory: string;
  readonly manifest: SnapshotManifest;
  /** sha256 of the manifest file. */
  readonly digest: string;
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

export interface CaptureStoreOptions {
  /** Made when it is not there; nobody but the server's user may enter it. */
  readonly root: string;
  readonly files?: CaptureFiles;
}

function code(error: unknown): unknown {
  return error instanceof Error && 'code' in error ? error.code : undefined;
}

/** The captures in directories below `root`. */
export async function openCaptureStore(options: CaptureStoreOptions): Promise<CaptureStore> {
  const { root, files = HOST_FILES } = options;
  await files.makeRoot(root);

  async function readManifest(directory: string): Promise<Uint8Array> {
    try {
      return await files.read(join(directory, MANIFEST_FILE));
    } catch (error) {
      if (code(error) !== 'ENOENT') throw error;
      return await files.read(join(directory, FIRST_MANIFEST_FILE));
    }
  }

  return {
    async allocate(id) {
      const directory = join(root, id);
      try {
        await files.makeDirectory(directory);
        await files.syncDirectory(root);
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
      let content: Uint8Array;
      try {
        content = await readManifest(directory);
      } catch (error) {
        throw new PlatformError('internal', 'the stored state cannot be read', {
          details: { directory },
          cause: error,
        });
      }
      return { directory, manifest: decodeManifest(content), digest: digestManifest(content) };
    },
    remove: (id) => files.remove(join(root, id)),
    list: async () => new Set(await files.names(root)),
  };
}
