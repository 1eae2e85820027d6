import { closeSync, fstatSync, openSync } from 'node:fs';
import { CHUNK, readFully, withFile, writeFully } from './file-io.ts';
import { changedExtents, type GuestMemory, guestMemoryStart } from './guest-memory.ts';
import { decodeLayerIndex, encodeLayerIndex, type LayerIndex, layerHeadBytes } from './memory-layer.ts';
import { PAGE } from './sparse-digest.ts';

/** Writes what a stopped engine changed in its guest's memory as a new layer file. */
export interface SaveLayerJob extends GuestMemory {
  readonly kind: 'save-layer';
  readonly target: string;
  /** Bytes of changed memory beyond which no layer is written. */
  readonly limit: number;
}

/** Writes the pages of a layer into the memory of an engine whose guest has not run yet. */
export interface ApplyLayerJob extends GuestMemory {
  readonly kind: 'apply-layer';
  readonly source: string;
}

/** Writes the layer; answers the size of the file, 0 when more than `limit` bytes changed. Blocks until done. */
export function saveLayer(job: SaveLayerJob): number {
  const start = guestMemoryStart(job);
  const extents = changedExtents(job, start);
  if (extents.reduce((sum, { length }) => sum + length, 0) > job.limit) return 0;
  const head = encodeLayerIndex(job.size, extents);
  const target = openSync(job.target, 'wx', 0o600);
  try {
    writeFully(target, head, 0, head.length, 0);
    return withFile(`/proc/${job.pid}/mem`, 'r', (memory) => {
      const buffer = Buffer.allocUnsafe(CHUNK);
      let position = head.length;
      let used = 0;
      const flush = (): void => {
        writeFully(target, buffer, 0, used, position);
        position += used;
        used = 0;
      };
      // Changed pages lie scattered: many small reads fill one large write.
      for (const { offset, length } of extents) {
        for (let done = 0; done < length; ) {
          const count = Math.min(CHUNK - used, length - done);
          readFully(memory, buffer, count, start + offset + done, used);
          used += count;
          done += count;
          if (used === CHUNK) flush();
        }
      }
      flush();
      return position;
    });
  } finally {
    closeSync(target);
  }
}

/** The checked index of a layer file for a guest of `memoryBytes`. */
function readLayerIndex(fd: number, memoryBytes: number): LayerIndex {
  const { size } = fstatSync(fd);
  if (size < PAGE) throw new Error('the memory layer is cut short');
  const start = Buffer.allocUnsafe(PAGE);
  readFully(fd, start, PAGE, 0);
  const bytes = layerHeadBytes(start, memoryBytes);
  if (bytes > size) throw new Error('the memory layer is cut short');
  const head = Buffer.allocUnsafe(bytes);
  readFully(fd, head, bytes, 0);
  return decodeLayerIndex(head, memoryBytes, size);
}

/** Applies the layer; answers the bytes of guest memory written. Blocks until done. */
export function applyLayer(job: ApplyLayerJob): number {
  const start = guestMemoryStart(job);
  return withFile(job.source, 'r', (source) => {
    const index = readLayerIndex(source, job.size);
    return withFile(`/proc/${job.pid}/mem`, 'r+', (memory) => {
      const buffer = Buffer.allocUnsafe(CHUNK);
      let position = index.dataOffset;
      let have = 0;
      let at = 0;
      for (const { offset, length } of index.extents) {
        for (let done = 0; done < length; ) {
          if (at === have) {
            have = Math.min(CHUNK, index.fileBytes - position);
            readFully(source, buffer, have, position);
            position += have;
            at = 0;
          }
          const count = Math.min(have - at, length - done);
          writeFully(memory, buffer, at, at + count, start + offset + done);
          at += count;
          done += count;
        }
      }
      return index.fileBytes - index.dataOffset;
    });
  });
}
