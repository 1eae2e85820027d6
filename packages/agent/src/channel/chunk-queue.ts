/** Pieces below this size, bytes, are copied together instead of kept one by one. */
const SMALL_PIECE = 4096;
/** Size of the buffers they are copied into, bytes. */
const SEGMENT_BYTES = 16_384;

/**
 * Received bytes that wait for their consumer. Its memory is proportional to the bytes it holds, whatever their pieces
 * look like: a tiny piece of a large socket buffer would otherwise keep all of that buffer alive.
 */
export interface ChunkQueue {
  /** Bytes that wait. */
  readonly length: number;
  push(piece: Buffer): void;
  /** The oldest bytes, in pieces of any size; undefined when empty. */
  shift(): Buffer | undefined;
  clear(): void;
}

/** The piece itself, or a copy when it would keep more than twice its size of memory alive. */
export const compact = (piece: Buffer): Buffer =>
  piece.length * 2 < piece.buffer.byteLength ? Buffer.from(piece) : piece;

interface Segment {
  readonly storage: Buffer;
  used: number;
}

/** Creates an empty queue; its bound is the receive window of the stream that fills it. */
export function createChunkQueue(): ChunkQueue {
  let chunks: (Buffer | Segment)[] = [];
  let length = 0;

  const append = (segment: Segment, piece: Buffer): void => {
    piece.copy(segment.storage, segment.used);
    segment.used += piece.length;
  };

  return {
    get length() {
      return length;
    },
    push(piece) {
      length += piece.length;
      const last = chunks.at(-1);
      if (last !== undefined && !Buffer.isBuffer(last) && piece.length <= last.storage.length - last.used) {
        append(last, piece);
      } else if (piece.length < SMALL_PIECE) {
        const segment = { storage: Buffer.allocUnsafeSlow(SEGMENT_BYTES), used: 0 };
        append(segment, piece);
        chunks.push(segment);
      } else {
        chunks.push(compact(piece));
      }
    },
    shift() {
      const first = chunks.shift();
      if (first === undefined) return undefined;
      const bytes = Buffer.isBuffer(first) ? first : first.storage.subarray(0, first.used);
      length -= bytes.length;
      return bytes;
    },
    clear() {
      chunks = [];
      length = 0;
    },
  };
}
