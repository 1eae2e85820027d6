import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, readdir, readFile, rename, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pipeline } from 'node:stream/promises';

/** sha256 of text or bytes, hexadecimal. */
export function sha256(data: string | Uint8Array): string {
  return createHash('sha256').update(data).digest('hex');
}

/** sha256 of a file's contents, hexadecimal. */
export async function sha256File(path: string): Promise<string> {
  const hash = createHash('sha256');
  await pipeline(createReadStream(path, { highWaterMark: 1 << 20 }), hash);
  return hash.digest('hex');
}

/** sha256 over the relative paths and contents of every file below a directory that `accept` takes. */
export async function sha256Tree(directory: string, accept: (path: string) => boolean): Promise<string> {
  const entries = await readdir(directory, { recursive: true, withFileTypes: true });
  const paths = entries
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(directory.length + 1))
    .filter(accept)
    .sort();
  const hash = createHash('sha256');
  for (const path of paths) hash.update(`${path}\0${sha256(await readFile(join(directory, path)))}\n`);
  return hash.digest('hex');
}

/** Replaces a file in one step, so that a reader or an interruption never meets half of it. */
export async function writeFileAtomically(path: string, data: string | Uint8Array, mode = 0o644): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  const temporary = `${path}.tmp-${process.pid}`;
  await writeFile(temporary, data, { mode, flush: true });
  await rename(temporary, path);
}

/** A file's text, or undefined when there is none. */
export async function readTextIfPresent(path: string): Promise<string | undefined> {
  return readFile(path, 'utf8').catch((caught: NodeJS.ErrnoException) => {
    if (caught.code === 'ENOENT' || caught.code === 'ENOTDIR') return undefined;
    throw caught;
  });
}
