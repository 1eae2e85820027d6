import { constants } from 'node:fs';
import { type FileHandle, link, mkdir, open, stat, unlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { PlatformError } from '@agentenv/core';

/** Longest secret a managed file may hold, bytes: 64 characters and a newline. */
export const MAX_SECRET_BYTES = 65;

export interface ManagedFile {
  readonly path: string;
  /** Who must own it and its directory. */
  readonly uid: number;
  /** A new secret, for when there is no file; undefined refuses to start instead, with this reason. */
  readonly create: (() => string) | { readonly refuse: string };
  /** A random name part for the temporary file. */
  readonly unique: string;
}

/**
 * Reads a secret this server manages, or creates it (agentenv.md section 2.2): directory 0700, file 0600, owned by the
 * server's user, a regular file and no symbolic link, at most 65 bytes. Creation is atomic and never replaces a file, so
 * two servers that start at once end with the same secret. The text comes without its trailing newline.
 */
export async function readManagedFile(file: ManagedFile): Promise<string> {
  const present = await readChecked(file);
  if (present !== undefined) return present;
  if (typeof file.create !== 'function') {
    throw new PlatformError('invalid_argument', `${file.path} is missing: ${file.create.refuse}`);
  }
  await createFile(file, file.create());
  const created = await readChecked(file);
  if (created === undefined) throw new PlatformError('internal', `${file.path} vanished while it was created`);
  return created;
}

async function readChecked({ path, uid }: ManagedFile): Promise<string | undefined> {
  let handle: FileHandle;
  try {
    // A FIFO in its place must not hold up the start, and a link must not lead elsewhere.
    handle = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT') return undefined;
    throw refused(path, code === 'ELOOP' ? 'it is a symbolic link' : 'it cannot be opened', error);
  }
  await using _ = handle;
  const status = await handle.stat();
  if (!status.isFile()) throw refused(path, 'it is not a regular file');
  if (status.uid !== uid) throw refused(path, `it belongs to user ${status.uid}, not to ${uid}`);
  if ((status.mode & 0o777) !== 0o600) throw refused(path, `its mode is ${octal(status.mode)}, not 0600`);
  if (status.size > MAX_SECRET_BYTES) throw refused(path, `it is longer than ${MAX_SECRET_BYTES} bytes`);
  await checkDirectory(dirname(path), uid);
  const bytes = Buffer.alloc(MAX_SECRET_BYTES);
  const { bytesRead } = await handle.read(bytes, 0, MAX_SECRET_BYTES, 0);
  return bytes.toString('utf8', 0, bytesRead).replace(/\n$/, '');
}

async function createFile({ path, uid, unique }: ManagedFile, secret: string): Promise<void> {
  const directory = dirname(path);
  await mkdir(directory, { recursive: true, mode: 0o700 });
  await checkDirectory(directory, uid);
  const temporary = join(directory, `.new-${unique}`);
  try {
    {
      await using handle = await open(temporary, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, 0o600);
      await handle.writeFile(`${secret}\n`);
      await handle.sync();
    }
    await link(temporary, path).catch((error: NodeJS.ErrnoException) => {
      // Somebody else was faster; theirs counts.
      if (error.code !== 'EEXIST') throw error;
    });
  } finally {
    await unlink(temporary).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOENT') throw error;
    });
  }
  await using handle = await open(directory, constants.O_RDONLY);
  await handle.sync();
}

async function checkDirectory(path: string, uid: number): Promise<void> {
  const status = await stat(path);
  if (!status.isDirectory()) throw refused(path, 'it is not a directory');
  if (status.uid !== uid) throw refused(path, `it belongs to user ${status.uid}, not to ${uid}`);
  if ((status.mode & 0o777) !== 0o700) throw refused(path, `its mode is ${octal(status.mode)}, not 0700`);
}

function refused(path: string, why: string, cause?: unknown): PlatformError {
  return new PlatformError('invalid_argument', `${path} is not usable as a secret: ${why}`, { cause });
}

function octal(mode: number): string {
  return (mode & 0o777).toString(8).padStart(4, '0');
}
