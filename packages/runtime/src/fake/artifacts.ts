import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Where the fake keeps what a capture consists of: directories of small files. */
export interface ArtifactStore {
  put(directory: string, name: string, content: Uint8Array): Promise<void>;
  /** undefined when there is no such file. */
  get(directory: string, name: string): Promise<Uint8Array | undefined>;
  /** Everything in the directory; absent is fine. */
  remove(directory: string): Promise<void>;
}

/** Keeps artifacts in memory, so that tests on a fake clock never wait for a disk. */
export function createMemoryArtifacts(): ArtifactStore {
  const contents = new Map<string, Uint8Array>();
  return {
    async put(directory, name, content) {
      contents.set(join(directory, name), Uint8Array.from(content));
    },
    async get(directory, name) {
      return contents.get(join(directory, name));
    },
    async remove(directory) {
      for (const path of contents.keys()) if (path.startsWith(`${directory}/`)) contents.delete(path);
    },
  };
}

/** Keeps artifacts as real files, as every other backend does. */
export function createFileArtifacts(): ArtifactStore {
  return {
    async put(directory, name, content) {
      await mkdir(directory, { recursive: true });
      await writeFile(join(directory, name), content, { flush: true });
    },
    async get(directory, name) {
      try {
        return await readFile(join(directory, name));
      } catch (error) {
        if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
        throw error;
      }
    },
    remove: (directory) => rm(directory, { recursive: true, force: true }),
  };
}
