import { readFileSync } from 'node:fs';
import { readFully, withFile } from './file-io.ts';
import { type Extent, findMapping, privateExtents } from './pagemap.ts';
import type { Scratch } from './scratch.ts';
import { PAGE } from './sparse-digest.ts';

const PAGEMAP_ENTRY = 8;

/** Guest memory of an engine as its process shows it. */
export interface GuestMemory {
  readonly pid: number;
  /** The file mapped as guest memory, as `/proc/PID/maps` names it. */
  readonly mapped: string;
  /** Bytes of guest memory. */
  readonly size: number;
}

/** Address of the guest's first byte in the engine; throws when the engine is gone or does not map the file whole. */
export function guestMemoryStart({ pid, mapped, size }: GuestMemory): number {
  const mapping = findMapping(readFileSync(`/proc/${pid}/maps`, 'utf8'), mapped, size);
  if (mapping === undefined) throw new Error(`process ${pid} does not map ${size} bytes of ${mapped}`);
  return mapping.start;
}

/** What the engine changed in the file it maps privately; only right while the guest is stopped. */
export function changedExtents({ pid, size }: GuestMemory, start: number, scratch: Scratch): readonly Extent[] {
  const entries = scratch.take((size / PAGE) * PAGEMAP_ENTRY);
  withFile(`/proc/${pid}/pagemap`, 'r', (fd) => {
    readFully(fd, entries, entries.length, (start / PAGE) * PAGEMAP_ENTRY);
  });
  return privateExtents(entries);
}
