import { closeSync, fstatSync, openSync } from 'node:fs';
import { CHUNK, readFully, readUpTo, withFile, writeFully } from './file-io.ts';
import {
  BLOCK_CLUSTERS,
  CLUSTER,
  ENTRY,
  HEADER_LENGTH,
  l1ClustersOf,
  l1EntriesOf,
  l1OffsetOf,
  TABLE_ENTRIES,
  writeHeader,
} from './qcow2-layout.ts';

/** Writes one disk layer that stands for several of the same disk, and puts nothing on the platter. */
export interface MergeDiskLayersJob {
  readonly kind: 'merge-disk-layers';
  /** Oldest first. */
  readonly sources: readonly string[];
  readonly target: string;
  /** Virtual bytes of the disk. */
  readonly size: number;
}

/** What a layer says of a cluster: nothing, that it is all zeros, or where its bytes lie. */
type Cluster = undefined | 'zeros' | number;

interface DiskLayer {
  readonly fd: number;
  /** The second-level table of an entry of the first level; undefined: the layer holds nothing there. */
  table(l1Index: number): Buffer | undefined;
  /** What such a table says of one of its clusters. */
  cluster(table: Buffer, index: number): Cluster;
}

const COPIED = 0x8000_0000;
const COMPRESSED = 0x4000_0000;
const RESERVED = 0x3f00_0000;
const PLACE = 0x00ff_ffff;
const ZEROS = 1;
const HIGH = 2 ** 32;

/** The place an entry of a table names, 0 for none; throws where no cluster of the file can be. */
function placeOf(table: Buffer, at: number, fileSize: number): number {
  const high = table.readUInt32BE(at);
  const low = table.readUInt32BE(at + 4);
  const place = (high & PLACE) * HIGH + low - (low % 2);
  if ((high & (COMPRESSED | RESERVED)) !== 0 || place % CLUSTER !== 0 || place >= fileSize) {
    throw new Error('the tables of the disk layer are wrong');
  }
  return place;
}

/** Opens a layer file that an engine wrote; throws when it is none of a disk of `size` bytes. */
function openLayer(path: string, size: number): DiskLayer {
  const fd = openSync(path, 'r');
  try {
    const { size: fileSize } = fstatSync(fd);
    const header = Buffer.alloc(HEADER_LENGTH);
    readFully(fd, header, HEADER_LENGTH, 0);
    const l1 = Buffer.alloc(l1EntriesOf(size) * ENTRY);
    readFully(fd, l1, l1.length, l1OffsetOf(header, size));
    return {
      fd,
      table(l1Index) {
        const place = placeOf(l1, l1Index * ENTRY, fileSize);
        if (place === 0) return undefined;
        const table = Buffer.alloc(CLUSTER);
        readFully(fd, table, CLUSTER, place);
        return table;
      },
      cluster(table, index) {
        const place = placeOf(table, index * ENTRY, fileSize);
        if ((table.readUInt32BE(index * ENTRY + 4) & ZEROS) !== 0) return 'zeros';
        return place === 0 ? undefined : place;
      },
    };
  } catch (caught) {
    closeSync(fd);
    throw caught;
  }
}

function writeEntry(table: Buffer, index: number, place: number): void {
  table.writeUInt32BE(COPIED + Math.floor(place / HIGH), index * ENTRY);
  table.writeUInt32BE(place % HIGH, index * ENTRY + 4);
}

/** Appends whole clusters to a file, many at once. */
interface Appender {
  /** Where the next cluster will lie. */
  readonly end: number;
  /** Takes what `fill` puts into a zeroed cluster that begins at `at`; answers where it will lie. */
  append(fill: (buffer: Buffer, at: number) => void): number;
  flush(): void;
}

function createAppender(fd: number, start: number): Appender {
  const buffer = Buffer.alloc(CHUNK);
  let written = start;
  let used = 0;
  function flush(): void {
    writeFully(fd, buffer, 0, used, written);
    written += used;
    used = 0;
  }
  return {
    get end() {
      return written + used;
    },
    append(fill) {
      if (used === CHUNK) flush();
      const place = written + used;
      buffer.fill(0, used, used + CLUSTER);
      fill(buffer, used);
      used += CLUSTER;
      return place;
    },
    flush,
  };
}

/** Counts every cluster of the file once, those of the blocks written for it too; answers the table of the blocks. */
function appendRefcounts(appender: Appender): Buffer {
  const table = Buffer.alloc(CLUSTER);
  const used = appender.end / CLUSTER;
  let blocks = 0;
  while (blocks * BLOCK_CLUSTERS < used + blocks) blocks++;
  if (blocks > TABLE_ENTRIES) throw new Error('the merged disk layer is too large');
  for (let block = 0; block < blocks; block++) {
    const counted = Math.min(BLOCK_CLUSTERS, used + blocks - block * BLOCK_CLUSTERS);
    const place = appender.append((buffer, at) => {
      for (let index = 0; index < counted; index++) buffer.writeUInt16BE(1, at + index * 2);
    });
    table.writeBigUInt64BE(BigInt(place), block * ENTRY);
  }
  return table;
}

/** The newest word on each cluster of one second-level table, with the data of the clusters appended. */
function mergeTable(tables: readonly (readonly [DiskLayer, Buffer])[], appender: Appender): Buffer {
  const merged = Buffer.alloc(CLUSTER);
  for (let index = 0; index < TABLE_ENTRIES; index++) {
    for (const [layer, table] of tables) {
      const found = layer.cluster(table, index);
      if (found === undefined) continue;
      if (found === 'zeros') merged.writeUInt32BE(ZEROS, index * ENTRY + 4);
      // What lies behind the end of a layer file was never written: zeros.
      else
        writeEntry(
          merged,
          index,
          appender.append((buffer, at) => readUpTo(layer.fd, buffer, at, CLUSTER, found)),
        );
      break;
    }
  }
  return merged;
}

/**
 * Merges frozen layers into a new one: for every cluster the newest layer counts that says something of it. Written here
 * because `qemu-img` can merge layers only into what lies below them. Blocks until done.
 */
export function mergeDiskLayers({ sources, target, size }: MergeDiskLayersJob): void {
  using opened = new DisposableStack();
  const newestFirst = sources.toReversed().map((source) => {
    const layer = openLayer(source, size);
    opened.defer(() => closeSync(layer.fd));
    return layer;
  });
  withFile(target, 'wx', (fd) => {
    const l1Place = 2 * CLUSTER;
    const l1 = Buffer.alloc(l1ClustersOf(size) * CLUSTER);
    const appender = createAppender(fd, l1Place + l1.length);
    for (let index = 0; index < l1EntriesOf(size); index++) {
      const tables = newestFirst.flatMap((layer) => {
        const table = layer.table(index);
        return table === undefined ? [] : [[layer, table] as const];
      });
      if (tables.length === 0) continue;
      const merged = mergeTable(tables, appender);
      writeEntry(
        l1,
        index,
        appender.append((buffer, at) => merged.copy(buffer, at)),
      );
    }
    const refcounts = appendRefcounts(appender);
    appender.flush();
    const header = Buffer.alloc(CLUSTER);
    writeHeader(header, size, { l1: l1Place, refcounts: CLUSTER });
    writeFully(fd, header, 0, CLUSTER, 0);
    writeFully(fd, refcounts, 0, CLUSTER, CLUSTER);
    writeFully(fd, l1, 0, l1.length, l1Place);
  });
}
