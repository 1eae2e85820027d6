import { closeSync, openSync } from 'node:fs';
import { CHUNK, readFully, readSome, withFile, writeFully } from './file-io.ts';
import { changedExtents, type GuestMemory, guestMemoryStart } from './guest-memory.ts';
import { type LayerPiece, type LayerStack, openLayerStack } from './layer-stack.ts';
import { encodeLayerIndex } from './memory-layer.ts';
import type { Extent } from './pagemap.ts';
import type { Scratch } from './scratch.ts';
import { PAGE } from './sparse-digest.ts';

/** Writes what a stopped engine changed against the file it maps as a new layer file. */
export interface SaveLayerJob extends GuestMemory {
  readonly kind: 'save-layer';
  readonly target: string;
  /** Bytes of changed memory beyond which no layer is written. */
  readonly limit: number;
}

/** Writes what a layer of everything shows differently from a row of others upon the same base; reads files only. */
export interface ReduceLayerJob {
  readonly kind: 'reduce-layer';
  /** Holds everything that differs from the base. */
  readonly source: string;
  /** Layers the new one is to lie upon, oldest first. */
  readonly below: readonly string[];
  /** What lies below all of them. */
  readonly base: string;
  readonly target: string;
  /** Bytes of guest memory. */
  readonly size: number;
}

/** Writes one layer that stands for several neighbours of one row, and puts nothing on the platter. */
export interface MergeLayersJob {
  readonly kind: 'merge-layers';
  /** Oldest first. */
  readonly sources: readonly string[];
  readonly target: string;
  /** Bytes of guest memory. */
  readonly size: number;
}

/** Writes layers, oldest first, into the memory of an engine whose guest has not run yet. */
export interface ApplyLayersJob extends GuestMemory {
  readonly kind: 'apply-layers';
  readonly sources: readonly string[];
}

/** Runs of pages in one row, neighbours put together. */
function runsOf(pieces: readonly LayerPiece[]): readonly Extent[] {
  const runs: Extent[] = [];
  for (const { offset, length } of pieces) {
    const last = runs.at(-1);
    if (last !== undefined && last.offset + last.length === offset) {
      runs[runs.length - 1] = { offset: last.offset, length: last.length + length };
    } else {
      runs.push({ offset, length });
    }
  }
  return runs;
}

/** Gathers scattered pages into large writes behind a head; answers the size of the file. */
function writeLayer(path: string, size: number, pieces: readonly LayerPiece[], scratch: Scratch): number {
  const head = encodeLayerIndex(size, runsOf(pieces));
  const target = openSync(path, 'wx', 0o600);
  try {
    writeFully(target, head, 0, head.length, 0);
    const buffer = scratch.take(CHUNK);
    let position = head.length;
    let used = 0;
    const flush = (): void => {
      writeFully(target, buffer, 0, used, position);
      position += used;
      used = 0;
    };
    for (const piece of pieces) {
      for (let done = 0; done < piece.length; ) {
        const count = Math.min(CHUNK - used, piece.length - done);
        readFully(piece.fd, buffer, count, piece.position + done, used);
        used += count;
        done += count;
        if (used === CHUNK) flush();
      }
    }
    flush();
    return position;
  } finally {
    closeSync(target);
  }
}

/** Writes the layer; answers the size of the file, 0 when more than `limit` bytes changed. Blocks until done. */
export function saveLayer(job: SaveLayerJob, scratch: Scratch): number {
  const start = guestMemoryStart(job);
  const extents = changedExtents(job, start, scratch);
  if (extents.reduce((sum, { length }) => sum + length, 0) > job.limit) return 0;
  return withFile(`/proc/${job.pid}/mem`, 'r', (fd) => {
    const pieces = extents.map(({ offset, length }) => ({ offset, length, fd, position: start + offset }));
    return writeLayer(job.target, job.size, pieces, scratch);
  });
}

/** What the pages from `page` to at most `end` are: of a layer, or of the base where none holds them. */
function shownAt(stack: LayerStack, base: number, page: number, end: number): LayerPiece {
  const piece = stack.pieceAt(page, end);
  if (piece !== undefined) return piece;
  let next = page + 1;
  while (next < end && !stack.holds(next)) next++;
  return { offset: page * PAGE, length: (next - page) * PAGE, fd: base, position: page * PAGE };
}

/** Runs of at most a chunk of pages that at least one of two rows holds, and where both have them. */
function* pairsOf(now: LayerStack, former: LayerStack, base: number) {
  for (let page = 0; page < now.pages; page++) {
    while (page < now.pages && (now.holds(page) || former.holds(page))) {
      const limit = Math.min(now.pages, page + CHUNK / PAGE);
      const before = shownAt(former, base, page, limit);
      const after = shownAt(now, base, page, page + before.length / PAGE);
      yield { after, before };
      page += after.length / PAGE;
    }
  }
}

/** Pages that `now` shows with other contents than `former`, ascending. */
function differences(now: LayerStack, former: LayerStack, base: number, scratch: Scratch): readonly LayerPiece[] {
  const found: LayerPiece[] = [];
  const [left, right] = [scratch.take(CHUNK), scratch.take(CHUNK)];
  for (const { after, before } of pairsOf(now, former, base)) {
    const { offset, length, fd, position } = after;
    readFully(fd, left, length, position);
    readFully(before.fd, right, length, before.position);
    if (left.compare(right, 0, length, 0, length) === 0) continue;
    let first = -1;
    for (let at = 0; at <= length; at += PAGE) {
      const differs = at < length && left.compare(right, at, at + PAGE, at, at + PAGE) !== 0;
      if (differs && first < 0) first = at;
      if (differs || first < 0) continue;
      found.push({ offset: offset + first, length: at - first, fd, position: position + first });
      first = -1;
    }
  }
  return found;
}

/** Writes the difference; answers the size of the file. Blocks until done. */
export function reduceLayer({ source, below, base, target, size }: ReduceLayerJob, scratch: Scratch): number {
  using now = openLayerStack([source], size, scratch);
  using former = openLayerStack(below, size, scratch);
  return withFile(base, 'r', (fd) => writeLayer(target, size, differences(now, former, fd, scratch), scratch));
}

/** Merges the layers. Blocks until done. */
export function mergeLayers({ sources, target, size }: MergeLayersJob, scratch: Scratch): void {
  using stack = openLayerStack(sources, size, scratch);
  const pieces = [...stack.pieces()].toSorted((left, right) => left.offset - right.offset);
  writeLayer(target, size, pieces, scratch);
}

/** Applies the layers, each page once; answers the bytes of guest memory written. Blocks until done. */
export function applyLayers(job: ApplyLayersJob, scratch: Scratch): number {
  const start = guestMemoryStart(job);
  using stack = openLayerStack(job.sources, job.size, scratch);
  return withFile(`/proc/${job.pid}/mem`, 'r+', (memory) => {
    const buffer = scratch.take(CHUNK);
    let bytes = 0;
    let window = { fd: -1, from: 0, to: 0 };
    for (const { fd, offset, length, position } of stack.pieces()) {
      for (let done = 0; done < length; ) {
        const at = position + done;
        // Pages lie scattered in memory but close in the file: one large read serves many small writes.
        if (window.fd !== fd || at < window.from || at >= window.to) {
          window = { fd, from: at, to: at + readSome(fd, buffer, at) };
        }
        const count = Math.min(window.to - at, length - done);
        writeFully(memory, buffer, at - window.from, at - window.from + count, start + offset + done);
        done += count;
      }
      bytes += length;
    }
    return bytes;
  });
}
