import { mkdir, open, readdir, readFile, rm } from 'node:fs/promises';

/** What captures ask of a file system; an argument, so that a test can let each call fail. */
export interface CaptureFiles {
  /** With its parents; nobody but the server's user may enter. Present is fine. */
  makeRoot(path: string): Promise<void>;
  /** Fails when it is there. */
  makeDirectory(path: string): Promise<void>;
  /** Puts its entries on the platter. */
  syncDirectory(path: string): Promise<void>;
  read(path: string): Promise<Uint8Array>;
  names(path: string): Promise<readonly string[]>;
  /** With everything in it; absent is fine. */
  remove(path: string): Promise<void>;
}

/** The file system of this host. */
export const HOST_FILES: CaptureFiles = {
  async makeRoot(path) {
    await mkdir(path, { recursive: true, mode: 0o700 });
  },
  makeDirectory: (path) => mkdir(path, { mode: 0o700 }),
  async syncDirectory(path) {
    const directory = await open(path, 'r');
    try {
      await directory.sync();
    } finally {
      await directory.close();
    }
  },
  read: (path) => readFile(path),
  names: (path) => readdir(path),
  remove: (path) => rm(path, { recursive: true, force: true }),
};
