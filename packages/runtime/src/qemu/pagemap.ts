import { PAGE } from './sparse-digest.ts';

/** A run of consecutive bytes. */
export interface Extent {
  readonly offset: number;
  readonly length: number;
}

const ENTRY = 8;
const PRESENT_OR_SWAPPED = 0xc000_0000;
/** Bit 61 of an entry, in its upper half: the page belongs to a file, or is shared. */
const FILE_PAGE = 0x2000_0000;

/**
 * Runs of guest memory that differ from the file mapped privately below it: pages that are present or swapped and are
 * anonymous. `entries` are the mapping's entries of `/proc/PID/pagemap`, offsets count from its start.
 */
export function privateExtents(entries: Buffer): readonly Extent[] {
  const extents: Extent[] = [];
  const pages = Math.floor(entries.length / ENTRY);
  let first = -1;
  for (let page = 0; page <= pages; page++) {
    const upper = page < pages ? entries.readUInt32LE(page * ENTRY + 4) : 0;
    const changed = (upper & PRESENT_OR_SWAPPED) !== 0 && (upper & FILE_PAGE) === 0;
    if (changed && first < 0) first = page;
    if (!changed && first >= 0) {
      extents.push({ offset: first * PAGE, length: (page - first) * PAGE });
      first = -1;
    }
  }
  return extents;
}

/** Where `path` is mapped, from the text of `/proc/PID/maps`; undefined when it is not mapped, or only in part. */
export function findMapping(maps: string, path: string, size: number): { readonly start: number } | undefined {
  for (const line of maps.split('\n')) {
    const match = /^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \d+ +(.*)$/.exec(line);
    if (match === null) continue;
    const [, from = '', to = '', offset = '', name] = match;
    const start = Number.parseInt(from, 16);
    const length = Number.parseInt(to, 16) - start;
    if (name === path && Number.parseInt(offset, 16) === 0 && length === size) return { start };
  }
  return undefined;
}
