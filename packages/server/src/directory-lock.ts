import { once } from 'node:events';
import type { Dirent } from 'node:fs';
import { chmod, mkdir, readdir, rmdir, stat } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { PlatformError } from '@agentenv/core';

const SQLITE_BUSY = 5;

/**
 * Makes the home directory (0700) and claims it for this process until disposed or dead, also against servers in other
 * containers that share it. In use: `conflict`.
 *
 * The lock is that of an sqlite file: the kernel lets go of it with the process, however it ends, so there is never a
 * stale one; Node.js has no other call for such a lock.
 */
export async function claimHome(directory: string): Promise<Disposable> {
  await makeDirectory('home_path', directory);
  const path = join(directory, 'server.lock');
  const database = new DatabaseSync(path);
  try {
    database.exec('PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE');
    await chmod(path, 0o600);
  } catch (error) {
    database.close();
    if ((error as { errcode?: unknown }).errcode === SQLITE_BUSY) throw inUse('home_path', directory, error);
    throw error;
  }
  return { [Symbol.dispose]: () => database.close() };
}

/**
 * Makes the runtime directory (0700) and claims it for this process. Nothing durable is in it: at the end it goes, with
 * the empty directories in it. The claim is a listening socket whose abstract name stands for the directory: it
 * needs no file and ends with the process. In use: `conflict`.
 */
export async function claimRuntime(directory: string): Promise<AsyncDisposable> {
  await makeDirectory('runtime_path', directory);
  const { dev, ino } = await stat(directory);
  const server = createServer((socket) => socket.destroy());
  server.listen({ path: `\0aenv-runtime-${dev}-${ino}` });
  try {
    await once(server, 'listening');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EADDRINUSE') throw inUse('runtime_path', directory, error);
    throw error;
  }
  server.unref();
  return {
    async [Symbol.asyncDispose]() {
      for (const entry of await entriesOf(directory)) {
        if (entry.isDirectory()) await removeEmpty(join(directory, entry.name));
      }
      await removeEmpty(directory);
      server.close();
      await once(server, 'close');
    },
  };
}

/** What is in the directory; nothing when somebody has removed it. */
async function entriesOf(directory: string): Promise<readonly Dirent[]> {
  return readdir(directory, { withFileTypes: true }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [];
    throw error;
  });
}

/** Whatever is in it belongs to somebody else, or is left for the next start to clean up. */
async function removeEmpty(directory: string): Promise<void> {
  try {
    await rmdir(directory);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'ENOTEMPTY' && code !== 'EBUSY' && code !== 'ENOENT') throw error;
  }
}

async function makeDirectory(key: string, directory: string): Promise<void> {
  try {
    await mkdir(directory, { recursive: true, mode: 0o700 });
  } catch (error) {
    throw new PlatformError('invalid_argument', `${key} ${directory} cannot be made: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

function inUse(key: string, directory: string, cause: unknown): PlatformError {
  return new PlatformError('conflict', `${key} ${directory} is in use by another server`, { cause });
}
