import { createHash } from 'node:crypto';
import { createReadStream, type Dirent } from 'node:fs';
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

/** Everything below a directory, parents first, siblings by name; links are named and never followed. */
export async function* walk(directory: string): AsyncGenerator<{ readonly path: string; readonly entry: Dirent }> {
  const entries = await readdir(directory, { withFileTypes: true });
  for (const entry of entries.sort((a, b) => (a.name < b.name ? -1 : 1))) {
    const path = join(directory, entry.name);
    yield { path, entry };
    if (entry.isDirectory()) yield* walk(path);
  }
}

/** sha256 over the relative paths and contents of every file below a directory that `accept` takes. */
export async function sha256Tree(directory: string, accept: (path: string) => boolean): Promise<string> {
  const hash = createHash('sha256');
  for await (const { path, entry } of walk(directory)) {
    const relative = path.slice(directory.length + 1);
    if (entry.isFile() && accept(relative)) hash.update(`${relative}\0${sha256(await readFile(path))}\n`);
  }
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
