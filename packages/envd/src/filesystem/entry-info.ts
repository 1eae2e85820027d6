import { basename } from 'node:path/posix';
import type { EntryType, GuestEntry } from '@agentenv/agent';
import { type EntryInfoSchema, FileType } from '@agentenv/protocol/filesystem';
import type { MessageInitShape } from '@bufbuild/protobuf';

const NANOSECONDS = 1_000_000_000n;
const PERMISSION_BITS = 0o777;
const SETUID = 0o4000;
const SETGID = 0o2000;
const STICKY = 0o1000;

const FILE_TYPES = {
  other: FileType.UNSPECIFIED,
  file: FileType.FILE,
  directory: FileType.DIRECTORY,
  symlink: FileType.SYMLINK,
} as const satisfies Record<EntryType, FileType>;

/**
 * An entry as clients see it: type and mode are those of what a link names, everything else is the link's own
 * (contract e2b.md section 9.3).
 */
export function toEntryInfo(entry: GuestEntry): MessageInitShape<typeof EntryInfoSchema> {
  const { type, mode } = entry.link ?? entry;
  return {
    name: basename(entry.path),
    type: FILE_TYPES[type],
    path: entry.path,
    size: entry.size,
    mode: mode & PERMISSION_BITS,
    permissions: formatPermissions(entry.type, entry.mode),
    owner: entry.owner,
    group: entry.group,
    modifiedTime: toTimestamp(entry.mtimeNs),
    ...(entry.link === undefined ? {} : { symlinkTarget: entry.link.target }),
    metadata: Object.fromEntries(
      [...entry.xattrs].map(([name, value]) => [name, Buffer.from(value).toString('utf8').toWellFormed()]),
    ),
  };
}

/** Go's notation: a letter for every special bit, `-` when there is none, then the nine permissions. */
function formatPermissions(type: EntryType, mode: number): string {
  const letters = [
    type === 'directory' ? 'd' : '',
    type === 'symlink' ? 'L' : '',
    (mode & SETUID) !== 0 ? 'u' : '',
    (mode & SETGID) !== 0 ? 'g' : '',
    (mode & STICKY) !== 0 ? 't' : '',
    type === 'other' ? '?' : '',
  ].join('');
  const permissions = [...'rwxrwxrwx'].map((letter, index) => ((mode >> (8 - index)) & 1 ? letter : '-')).join('');
  return `${letters || '-'}${permissions}`;
}

function toTimestamp(nanoseconds: bigint): { readonly seconds: bigint; readonly nanos: number } {
  // Timestamps before the epoch have positive nanoseconds too.
  const nanos = ((nanoseconds % NANOSECONDS) + NANOSECONDS) % NANOSECONDS;
  return { seconds: (nanoseconds - nanos) / NANOSECONDS, nanos: Number(nanos) };
}
