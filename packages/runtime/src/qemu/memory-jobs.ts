import { createHash } from 'node:crypto';
import { closeSync, fstatSync, ftruncateSync, openSync } from 'node:fs';
import { type MergeDiskLayersJob, mergeDiskLayers } from './disk-merge.ts';
import { CHUNK, forEachChunk, withFile, writeFully } from './file-io.ts';
import { changedExtents, type GuestMemory, guestMemoryStart } from './guest-memory.ts';
import {
  type ApplyLayersJob,
  applyLayers,
  type MergeLayersJob,
  mergeLayers,
  type ReduceLayerJob,
  reduceLayer,
  type SaveLayerJob,
  saveLayer,
} from './memory-layer-jobs.ts';
import type { Extent } from './pagemap.ts';
import { createScratch, type Scratch } from './scratch.ts';
import { createSparseDigest, isZeroPage, PAGE } from './sparse-digest.ts';

/** Copies what a stopped engine changed in its guest's memory into `target`. */
export interface DumpMemoryJob extends GuestMemory {
  readonly kind: 'dump-memory';
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

/** sha256 of everything in a file. */
export interface HashFileJob {
  readonly kind: 'hash-file';
  readonly path: string;
}

export type MemoryJob = DumpMemoryJob | DigestJob | HashFileJob | SaveLayerJob | ReduceLayerJob | ApplyLayersJob;

/** Writes one layer, of memory or of a disk, that stands for several, and hashes it. */
export type BackgroundJob = MergeLayersJob | MergeDiskLayersJob;

export interface MemoryJobResult {
  /** Bytes copied, applied or hashed; of a digest those in pages that are not zero; of a layer that was written the file's size. */
  readonly bytes: number;
  /** Hex, of a job that hashes or merges; empty otherwise. */
  readonly sha256: string;
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

function dumpMemory(job: DumpMemoryJob, scratch: Scratch): number {
  const start = guestMemoryStart(job);
  const extents = changedExtents(job, start, scratch);
  const target = openTarget(job.target, job.size);
  let bytes = 0;
  try {
    withFile(`/proc/${job.pid}/mem`, 'r', (memory) => {
      forEachChunk(memory, extents, start, scratch.take(CHUNK), (chunk, length, offset) => {
        writePages(target.fd, chunk, length, offset, target.fresh);
        bytes += length;
      });
    });
  } finally {
    closeSync(target.fd);
  }
  return bytes;
}

function digest(job: DigestJob, scratch: Scratch): MemoryJobResult {
  const sparse = createSparseDigest(job.size);
  withFile(job.path, 'r', (fd) => {
    forEachChunk(fd, job.extents, 0, scratch.take(CHUNK), (chunk, length, offset) => {
      sparse.update(offset, chunk.subarray(0, length));
    });
  });
  return { bytes: sparse.dataBytes, sha256: sparse.digest() };
}

function hashFile(path: string, scratch: Scratch): MemoryJobResult {
  return withFile(path, 'r', (fd) => {
    const hash = createHash('sha256');
    const { size } = fstatSync(fd);
    const whole = size === 0 ? [] : [{ offset: 0, length: size }];
    forEachChunk(fd, whole, 0, scratch.take(CHUNK), (chunk, length) => hash.update(chunk.subarray(0, length)));
    return { bytes: size, sha256: hash.digest('hex') };
  });
}

/** Runs one job on the calling thread; it blocks until done, so only a worker thread calls it. */
export function runMemoryJob(job: MemoryJob | BackgroundJob, kept = createScratch()): MemoryJobResult {
  using scratch = kept;
  switch (job.kind) {
    case 'dump-memory':
      return { bytes: dumpMemory(job, scratch), sha256: '' };
    case 'save-layer':
      return { bytes: saveLayer(job, scratch), sha256: '' };
    case 'reduce-layer':
      return { bytes: reduceLayer(job, scratch), sha256: '' };
    case 'merge-layers':
      mergeLayers(job, scratch);
      return hashFile(job.target, scratch);
    case 'apply-layers':
      return { bytes: applyLayers(job, scratch), sha256: '' };
    case 'digest':
      return digest(job, scratch);
    case 'hash-file':
      return hashFile(job.path, scratch);
    case 'merge-disk-layers':
      mergeDiskLayers(job);
      return hashFile(job.target, scratch);
  }
}
