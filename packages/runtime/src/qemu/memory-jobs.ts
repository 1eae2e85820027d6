import { closeSync, ftruncateSync, openSync, readFileSync, readSync, writeSync } from 'node:fs';
import { type Extent, findMapping, privateExtents } from './pagemap.ts';
import { createSparseDigest, isZeroPage, PAGE } from './sparse-digest.ts';

const CHUNK = 1 << 20;
const PAGEMAP_ENTRY = 8;

/** Copies what a stopped engine changed in its guest's memory into `target`. */
export interface DumpMemoryJob {
  readonly kind: 'dump-memory';
  readonly pid: number;
  /** The file mapped as guest memory, as `/proc/PID/maps` names it. */
  readonly mapped: string;
  /** Bytes of guest memory. */
  readonly size: number;
  /** Created, or a copy of `mapped` that gets the changed pages written over it. */
  readonly target: string;
}

/** Digest of a sparse file whose data lies in `extents`, ascending. */
export interface DigestJob {
  readonly kind: 'digest';
  readonly path: string;
  readonly size: number;
  readonly extents: readonly Extent[];
}

export type MemoryJob = DumpMemoryJob | DigestJob;

export interface MemoryJobResult {
  /** Bytes copied, or bytes in pages that are not zero. */
  readonly bytes: number;
  /** Hex, of a digest job; empty otherwise. */
  readonly sha256: string;
}

function readFully(fd: number, target: Buffer, length: number, position: number): void {
  for (let done = 0; done < length; ) {
    const count = readSync(fd, target, done, length - done, position + done);
    if (count === 0) throw new Error(`unexpected end of file at ${position + done}`);
    done += count;
  }
}

function writeFully(fd: number, source: Buffer, start: number, end: number, position: number): void {
  for (let done = start; done < end; ) {
    done += writeSync(fd, source, done, end - done, position + done - start);
  }
}

/** Writes the pages of a chunk, leaving holes where the target is known to be empty and the page is zero. */
function writePages(fd: number, chunk: Buffer, length: number, position: number, skipZeros: boolean): void {
  if (!skipZeros) {
    writeFully(fd, chunk, 0, length, position);
    return;
  }
  let from = 0;
  for (let at = 0; at <= length; at += PAGE) {
    if (at < length && !isZeroPage(chunk, at)) continue;
    if (from < at) writeFully(fd, chunk, from, at, position + from);
    from = at + PAGE;
  }
}

function forEachChunk(
  fd: number,
  extents: readonly Extent[],
  base: number,
  use: (chunk: Buffer, length: number, offset: number) => void,
): void {
  const buffer = Buffer.allocUnsafe(CHUNK);
  for (const extent of extents) {
    for (let done = 0; done < extent.length; ) {
      const length = Math.min(CHUNK, extent.length - done);
      readFully(fd, buffer, length, base + extent.offset + done);
      use(buffer, length, extent.offset + done);
      done += length;
    }
  }
}

function withFile<T>(path: string, flags: string, use: (fd: number) => T): T {
  const fd = openSync(path, flags, 0o600);
  try {
    return use(fd);
  } finally {
    closeSync(fd);
  }
}

function readPagemap(pid: number, start: number, size: number): Buffer {
  const entries = Buffer.allocUnsafe((size / PAGE) * PAGEMAP_ENTRY);
  withFile(`/proc/${pid}/pagemap`, 'r', (fd) => {
    readFully(fd, entries, entries.length, (start / PAGE) * PAGEMAP_ENTRY);
  });
  return entries;
}

function openTarget(path: string, size: number): { readonly fd: number; readonly fresh: boolean } {
  try {
    const fd = openSync(path, 'wx', 0o600);
    ftruncateSync(fd, size);
    return { fd, fresh: true };
  } catch (caught) {
    if (caught instanceof Error && 'code' in caught && caught.code === 'EEXIST') {
      return { fd: openSync(path, 'r+'), fresh: false };
    }
    throw caught;
  }
}

function dumpMemory(job: DumpMemoryJob): MemoryJobResult {
  const mapping = findMapping(readFileSync(`/proc/${job.pid}/maps`, 'utf8'), job.mapped, job.size);
  if (mapping === undefined) throw new Error(`process ${job.pid} does not map ${job.size} bytes of ${job.mapped}`);
  const extents = privateExtents(readPagemap(job.pid, mapping.start, job.size));
  const target = openTarget(job.target, job.size);
  let bytes = 0;
  try {
    withFile(`/proc/${job.pid}/mem`, 'r', (memory) => {
      forEachChunk(memory, extents, mapping.start, (chunk, length, offset) => {
        writePages(target.fd, chunk, length, offset, target.fresh);
        bytes += length;
      });
    });
  } finally {
    closeSync(target.fd);
  }
  return { bytes, sha256: '' };
}

function digest(job: DigestJob): MemoryJobResult {
  const sparse = createSparseDigest(job.size);
  withFile(job.path, 'r', (fd) => {
    forEachChunk(fd, job.extents, 0, (chunk, length, offset) => sparse.update(offset, chunk.subarray(0, length)));
  });
  return { bytes: sparse.dataBytes, sha256: sparse.digest() };
}

/** Runs one job on the calling thread; it blocks until done, so only a worker thread calls it. */
export function runMemoryJob(job: MemoryJob): MemoryJobResult {
  return job.kind === 'dump-memory' ? dumpMemory(job) : digest(job);
}
