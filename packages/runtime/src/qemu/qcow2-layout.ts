/** The one shape of image written here: version 3, clusters of 64 KiB, 16 bits per reference count, no backing file named. */
const MAGIC = 0x5146_49fb;
const VERSION = 3;
const CLUSTER_BITS = 16;
const REFCOUNT_ORDER = 4;
export const HEADER_LENGTH = 104;
const SECTOR = 512;

export const CLUSTER = 1 << CLUSTER_BITS;
/** Bytes of an entry of a mapping or reference count table. */
export const ENTRY = 8;
/** Entries of a second-level table, which fills one cluster. */
export const TABLE_ENTRIES = CLUSTER / ENTRY;
/** Clusters one block of reference counts is about. */
export const BLOCK_CLUSTERS = CLUSTER / 2;
/** One second-level table of 64 KiB maps 8192 clusters. */
const BYTES_PER_L1_ENTRY = TABLE_ENTRIES * CLUSTER;

const ENCRYPTION = 32;
const SNAPSHOTS = 60;
const INCOMPATIBLE_FEATURES = 72;

export interface Qcow2Tables {
  /** Where the first-level mapping table begins, bytes. */
  readonly l1: number;
  /** Where the table of reference count blocks begins; it fills one cluster. */
  readonly refcounts: number;
}

/** Entries of the first-level table of a disk; `RangeError` for a size that is no positive multiple of a sector. */
export function l1EntriesOf(virtualSize: number): number {
  if (!Number.isSafeInteger(virtualSize) || virtualSize <= 0 || virtualSize % SECTOR !== 0) {
    throw new RangeError(`a disk of ${virtualSize} bytes is not a positive multiple of ${SECTOR}`);
  }
  return Math.ceil(virtualSize / BYTES_PER_L1_ENTRY);
}

/** Clusters of the first-level table. */
export function l1ClustersOf(virtualSize: number): number {
  return Math.ceil((l1EntriesOf(virtualSize) * ENTRY) / CLUSTER);
}

export function writeHeader(image: Buffer, virtualSize: number, tables: Qcow2Tables): void {
  image.writeUInt32BE(MAGIC, 0);
  image.writeUInt32BE(VERSION, 4);
  image.writeUInt32BE(CLUSTER_BITS, 20);
  image.writeBigUInt64BE(BigInt(virtualSize), 24);
  image.writeUInt32BE(l1EntriesOf(virtualSize), 36);
  image.writeBigUInt64BE(BigInt(tables.l1), 40);
  image.writeBigUInt64BE(BigInt(tables.refcounts), 48);
  image.writeUInt32BE(1, 56);
  image.writeUInt32BE(REFCOUNT_ORDER, 96);
  image.writeUInt32BE(HEADER_LENGTH, 100);
}

/**
 * Where the first-level table of an image lies. An engine may have written the header: whatever names other files, or
 * would have the clusters mean something else, is refused.
 */
export function l1OffsetOf(header: Buffer, virtualSize: number): number {
  if (header.readUInt32BE(0) !== MAGIC || header.readUInt32BE(4) !== VERSION) throw new Error('no disk layer');
  const plain =
    header.readUInt32BE(20) === CLUSTER_BITS &&
    header.readUInt32BE(ENCRYPTION) === 0 &&
    header.readUInt32BE(SNAPSHOTS) === 0 &&
    header.readBigUInt64BE(INCOMPATIBLE_FEATURES) === 0n;
  if (!plain) throw new Error('the disk layer is of a kind that is not used');
  const size = header.readBigUInt64BE(24);
  const entries = header.readUInt32BE(36);
  if (size !== BigInt(virtualSize) || entries < l1EntriesOf(virtualSize)) {
    throw new Error(`the disk layer is of ${size} instead of ${virtualSize} bytes`);
  }
  const offset = header.readBigUInt64BE(40);
  if (offset > BigInt(Number.MAX_SAFE_INTEGER)) throw new Error('the tables of the disk layer are wrong');
  return Number(offset);
}
