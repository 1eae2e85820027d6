import { type CaptureId, PlatformError } from '@agentenv/core';
import type { CaptureStore } from './capture-store.ts';
import { decodeManifest, digestManifest, FIRST_MANIFEST_FILE, MANIFEST_FILE } from './manifest-codec.ts';
import type { MemoryDisk } from './memory-ledger.ts';

/** Files in memory of whoever writes captures. */
export interface MemoryFiles {
  get(directory: string, name: string): Promise<Uint8Array | undefined>;
  /** Everything in the directory; absent is fine. */
  remove(directory: string): Promise<void>;
}

const ROOT = '/captures';

/** Captures for tests, on a disk that is a map; the directory of one is `/captures/<id>`. */
export function openMemoryCaptures(options: { readonly disk: MemoryDisk; readonly files: MemoryFiles }): CaptureStore {
  const { disk, files } = options;
  const directoryOf = (id: CaptureId): string => `${ROOT}/${id}`;
  return {
    async allocate(id) {
      if (disk.captures.has(id)) throw new PlatformError('internal', 'no directory could be made for the capture');
      disk.captures.add(id);
      return directoryOf(id);
    },
    async open(id) {
      const directory = directoryOf(id);
      const content = disk.captures.has(id)
        ? ((await files.get(directory, MANIFEST_FILE)) ?? (await files.get(directory, FIRST_MANIFEST_FILE)))
        : undefined;
      if (content === undefined) throw new PlatformError('internal', 'the stored state cannot be read');
      return { directory, manifest: decodeManifest(content), digest: digestManifest(content) };
    },
    async remove(id) {
      disk.captures.delete(id);
      await files.remove(directoryOf(id));
    },
    list: async () => new Set(disk.captures),
  };
}
