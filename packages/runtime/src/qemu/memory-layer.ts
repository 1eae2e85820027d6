import type { Extent } from './pagemap.ts';
import { PAGE } from './sparse-digest.ts';

const MAGIC = Buffer.from('AENVMEML', 'latin1');
const VERSION = 1;
const HEADER = 32;
const RUN = 8;
const MEMORY_BYTES_AT = 16;
const RUN_COUNT_AT = 24;
/** Pages of 4 KiB in the largest guest the format describes. */
const MAX_PAGES = 2 ** 32;

/** What a memory layer holds: guest pages, in ascending runs, one behind the other from `dataOffset` on. */
export interface LayerIndex {
  /** Bytes of guest memory the layer belongs to. */
  readonly memoryBytes: number;
  readonly extents: readonly Extent[];
  /** Where the first page lies in the file; a multiple of the page size. */
  readonly dataOffset: number;
  /** Size of the whole file. */
  readonly fileBytes: number;
}

function roundUp(bytes: number): number {
  return Math.ceil(bytes / PAGE) * PAGE;
}

function dataBytes(extents: readonly Extent[]): number {
  return extents.reduce((sum, { length }) => sum + length, 0);
}

/**
 * The head of a layer file, padded to a whole page; the pages of `extents` follow it in order. Layout (little-endian):
 * `"AENVMEML"`, u32 version, u32 page size, u64 bytes of memory, u32 runs, u32 0, then per run u32 first page, u32 pages.
 */
export function encodeLayerIndex(memoryBytes: number, extents: readonly Extent[]): Buffer {
  const head = Buffer.alloc(roundUp(HEADER + extents.length * RUN));
  MAGIC.copy(head);
  head.writeUInt32LE(VERSION, 8);
  head.writeUInt32LE(PAGE, 12);
  head.writeBigUInt64LE(BigInt(memoryBytes), MEMORY_BYTES_AT);
  head.writeUInt32LE(extents.length, RUN_COUNT_AT);
  for (const [index, { offset, length }] of extents.entries()) {
    head.writeUInt32LE(offset / PAGE, HEADER + index * RUN);
    head.writeUInt32LE(length / PAGE, HEADER + index * RUN + 4);
  }
  return head;
}

/** Bytes of the head whose first 32 bytes are given; throws when that is no layer of `memoryBytes`. */
export function layerHeadBytes(start: Buffer, memoryBytes: number): number {
  if (start.length < HEADER || !start.subarray(0, MAGIC.length).equals(MAGIC)) throw new Error('not a memory layer');
  const version = start.readUInt32LE(8);
  const page = start.readUInt32LE(12);
  if (version !== VERSION || page !== PAGE) throw new Error(`memory layer of version ${version}, pages of ${page}`);
  const stated = start.readBigUInt64LE(MEMORY_BYTES_AT);
  if (stated !== BigInt(memoryBytes)) throw new Error(`memory layer of ${stated} bytes, the guest has ${memoryBytes}`);
  const runs = start.readUInt32LE(RUN_COUNT_AT);
  if (runs > memoryBytes / PAGE) throw new Error(`memory layer with ${runs} runs`);
  return roundUp(HEADER + runs * RUN);
}

/** Reads a head written by `encodeLayerIndex`; throws unless its runs ascend inside the memory and the file is complete. */
export function decodeLayerIndex(head: Buffer, memoryBytes: number, fileBytes: number): LayerIndex {
  const dataOffset = layerHeadBytes(head, memoryBytes);
  if (head.length < dataOffset) throw new Error('the memory layer is cut short');
  const pages = Math.min(memoryBytes / PAGE, MAX_PAGES);
  const extents: Extent[] = [];
  let free = 0;
  for (let index = 0; index < head.readUInt32LE(RUN_COUNT_AT); index++) {
    const first = head.readUInt32LE(HEADER + index * RUN);
    const count = head.readUInt32LE(HEADER + index * RUN + 4);
    if (first < free || count === 0 || first + count > pages) throw new Error('the runs of the memory layer are wrong');
    free = first + count;
    extents.push({ offset: first * PAGE, length: count * PAGE });
  }
  const expected = dataOffset + dataBytes(extents);
  if (fileBytes !== expected) throw new Error(`the memory layer has ${fileBytes} bytes instead of ${expected}`);
  return { memoryBytes, extents, dataOffset, fileBytes };
}
