import { closeSync, openSync, readSync, writeSync } from 'node:fs';
import type { Extent } from './pagemap.ts';

/** Bytes moved at once. */
export const CHUNK = 1 << 20;

/** Fills `target` from `start` on with `length` bytes at `position`; throws at an early end. Blocks: worker threads only. */
export function readFully(fd: number, target: Buffer, length: number, position: number, start = 0): void {
  for (let done = 0; done < length; ) {
    const count = readSync(fd, target, start + done, length - done, position + done);
    if (count === 0) throw new Error(`unexpected end of file at ${position + done}`);
    done += count;
  }
}

/** Fills `target` as far as the file goes, at least with one byte; answers how many. Blocks: worker threads only. */
export function readSome(fd: number, target: Buffer, position: number): number {
  const count = readSync(fd, target, 0, target.length, position);
  if (count === 0) throw new Error(`unexpected end of file at ${position}`);
  return count;
}

/** Fills `target` from `start` on with what there is of `length` bytes at `position`. Blocks: worker threads only. */
export function readUpTo(fd: number, target: Buffer, start: number, length: number, position: number): void {
  for (let done = 0; done < length; ) {
    const count = readSync(fd, target, start + done, length - done, position + done);
    if (count === 0) return;
    done += count;
  }
}

/** Writes `source` from `start` to `end`, the first byte at `position`. Blocks: worker threads only. */
export function writeFully(fd: number, source: Buffer, start: number, end: number, position: number): void {
  for (let done = start; done < end; ) {
    done += writeSync(fd, source, done, end - done, position + done - start);
  }
}

/** Reads `extents`, moved by `base`, in pieces as large as `buffer` at most, which is used again for the next piece. */
export function forEachChunk(
  fd: number,
  extents: readonly Extent[],
  base: number,
  buffer: Buffer,
  use: (chunk: Buffer, length: number, offset: number) => void,
): void {
  for (const extent of extents) {
    for (let done = 0; done < extent.length; ) {
      const length = Math.min(buffer.length, extent.length - done);
      readFully(fd, buffer, length, base + extent.offset + done);
      use(buffer, length, extent.offset + done);
      done += length;
    }
  }
}

/** Opens a file for the time of `use`; a new one is root's alone. */
export function withFile<T>(path: string, flags: string, use: (fd: number) => T): T {
  const fd = openSync(path, flags, 0o600);
  try {
    return use(fd);
  } finally {
    closeSync(fd);
  }
}
