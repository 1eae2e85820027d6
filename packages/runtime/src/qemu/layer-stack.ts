import { closeSync, fstatSync, openSync } from 'node:fs';
import { readFully } from './file-io.ts';
import { decodeLayerIndex, type LayerIndex, layerHeadBytes } from './memory-layer.ts';
import type { Scratch } from './scratch.ts';
import { PAGE } from './sparse-digest.ts';

/** More than any chain of ours gets; the owner of a page is one byte. */
const MAX_STACK = 254;

/** A run of pages as it lies in a file and in the guest. */
export interface LayerPiece {
  /** Bytes from the start of the guest's memory. */
  readonly offset: number;
  readonly length: number;
  /** Open file. */
  readonly fd: number;
  /** Where the run begins in it. */
  readonly position: number;
}

/** Open layer files one upon the other: for every page the newest layer that holds it counts. */
export interface LayerStack extends Disposable {
  /** Pages of the guest's memory. */
  readonly pages: number;
  /** True when a layer holds that page. */
  holds(page: number): boolean;
  /** What of the pages from `page` up to `end` lies in one piece of one layer; undefined when no layer holds `page`. */
  pieceAt(page: number, end: number): LayerPiece | undefined;
  /** Every page a layer holds, once, ascending within each layer, the oldest layer first. */
  pieces(): Iterable<LayerPiece>;
}

/** The checked index of a layer file for a guest of `memoryBytes`. */
function readLayerIndex(fd: number, memoryBytes: number, scratch: Scratch): LayerIndex {
  const { size } = fstatSync(fd);
  if (size < PAGE) throw new Error('the memory layer is cut short');
  const start = scratch.take(PAGE);
  readFully(fd, start, PAGE, 0);
  const bytes = layerHeadBytes(start, memoryBytes);
  if (bytes > size) throw new Error('the memory layer is cut short');
  const head = scratch.take(bytes);
  readFully(fd, head, bytes, 0);
  return decodeLayerIndex(head, memoryBytes, size);
}

/**
 * Opens layers, oldest first, of a guest of `memoryBytes`; throws when one of them is not a whole layer of that guest.
 * Blocks: worker threads only.
 */
export function openLayerStack(sources: readonly string[], memoryBytes: number, scratch: Scratch): LayerStack {
  if (sources.length > MAX_STACK) throw new Error(`${sources.length} memory layers are too many`);
  using undo = new DisposableStack();
  const pages = memoryBytes / PAGE;
  const owners = scratch.take(pages).fill(0);
  const bytes = scratch.take(pages * Uint32Array.BYTES_PER_ELEMENT);
  const positions = new Uint32Array(bytes.buffer, bytes.byteOffset, pages);
  const layers = sources.map((source, layer) => {
    const fd = openSync(source, 'r');
    undo.defer(() => closeSync(fd));
    const index = readLayerIndex(fd, memoryBytes, scratch);
    let position = index.dataOffset / PAGE;
    for (const { offset, length } of index.extents) {
      const end = (offset + length) / PAGE;
      owners.fill(layer + 1, offset / PAGE, end);
      for (let page = offset / PAGE; page < end; page++) positions[page] = position++;
    }
    return { fd, index };
  });
  const opened = undo.move();

  function pieceAt(page: number, end: number): LayerPiece | undefined {
    const owner = owners[page] ?? 0;
    const layer = layers[owner - 1];
    if (layer === undefined) return undefined;
    const first = positions[page] ?? 0;
    let next = page + 1;
    while (next < end && owners[next] === owner && positions[next] === first + next - page) next++;
    return { offset: page * PAGE, length: (next - page) * PAGE, fd: layer.fd, position: first * PAGE };
  }

  return {
    pages,
    holds: (page) => owners[page] !== 0,
    pieceAt,
    *pieces() {
      for (const [layer, { index }] of layers.entries()) {
        for (const { offset, length } of index.extents) {
          const end = (offset + length) / PAGE;
          for (let page = offset / PAGE; page < end; ) {
            const piece = owners[page] === layer + 1 ? pieceAt(page, end) : undefined;
            if (piece !== undefined) yield piece;
            page += piece === undefined ? 1 : piece.length / PAGE;
          }
        }
      }
    },
    [Symbol.dispose]: () => opened.dispose(),
  };
}
