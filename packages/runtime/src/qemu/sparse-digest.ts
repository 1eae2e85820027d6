import { createHash } from 'node:crypto';

export const PAGE = 4096;
const HEADER = 8;
const PAGES_PER_BATCH = 256;
const ZERO_PAGE = Buffer.alloc(PAGE);

/** True when the page at `offset` of `bytes` holds only zeros. */
export function isZeroPage(bytes: Buffer, offset: number): boolean {
  return bytes.compare(ZERO_PAGE, 0, PAGE, offset, offset + PAGE) === 0;
}

/** Digest of a sparse file, fed in ascending order of offset. */
export interface SparseDigest {
  /** `bytes` is a whole number of pages that starts at `offset` of the file. */
  update(offset: number, bytes: Buffer): void;
  /** Bytes in pages that are not zero, so far. */
  readonly dataBytes: number;
  /** sha256 in hex; ends the digest. */
  digest(): string;
}

/**
 * sha256 over the pages that are not zero, each preceded by its u64 little-endian index, and finally the file's size.
 * Holes and pages full of zeros count the same, so a copy that found or lost holes on another file system still matches,
 * and a mostly empty file of many gigabytes costs only what it holds.
 */
export function createSparseDigest(size: number): SparseDigest {
  const hash = createHash('sha256');
  const batch = Buffer.allocUnsafe(PAGES_PER_BATCH * (HEADER + PAGE));
  let used = 0;
  let dataBytes = 0;
  return {
    update(offset, bytes) {
      for (let at = 0; at < bytes.length; at += PAGE) {
        if (isZeroPage(bytes, at)) continue;
        if (used === batch.length) {
          hash.update(batch);
          used = 0;
        }
        batch.writeBigUInt64LE(BigInt((offset + at) / PAGE), used);
        bytes.copy(batch, used + HEADER, at, at + PAGE);
        used += HEADER + PAGE;
        dataBytes += PAGE;
      }
    },
    get dataBytes() {
      return dataBytes;
    },
    digest() {
      hash.update(batch.subarray(0, used));
      const end = Buffer.alloc(HEADER);
      end.writeBigUInt64LE(BigInt(size), 0);
      return hash.update(end).digest('hex');
    },
  };
}
