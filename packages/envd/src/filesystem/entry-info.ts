import { basename } from 'node:path/posix';
import type { EntryType, GuestEntry } from '@agentenv/agent';
import { type EntryInfo, type EntryInfoSchema, FileType } from '@agentenv/protocol/filesystem';
import type { MessageInitShape } from '@bufbuild/protobuf';

const NANOSECONDS = 1_000_000_000n;
const PERMISSION_BITS = 0o777;
const SETUID = 0o4000;
const SETGID = 0o2000;
const STICKY = 0o1000;

/** The type of an entry, its name in JSON, and its letters in Go's notation. */
const TYPES = {
  file: { type: FileType.FILE, name: 'FILE_TYPE_FILE', letters: '' },
  directory: { type: FileType.DIRECTORY, name: 'FILE_TYPE_DIRECTORY', letters: 'd' },
  symlink: { type: FileType.SYMLINK, name: 'FILE_TYPE_SYMLINK', letters: 'L' },
  fifo: { type: FileType.UNSPECIFIED, name: undefined, letters: 'p' },
  socket: { type: FileType.UNSPECIFIED, name: undefined, letters: 'S' },
  'character-device': { type: FileType.UNSPECIFIED, name: undefined, letters: 'Dc' },
  'block-device': { type: FileType.UNSPECIFIED, name: undefined, letters: 'D' },
  unknown: { type: FileType.UNSPECIFIED, name: undefined, letters: '?' },
} as const satisfies Record<EntryType, { type: FileType; name: string | undefined; letters: string }>;

/** `rwxr-xr-x` by the nine permission bits. */
const PERMISSIONS: readonly string[] = Array.from({ length: PERMISSION_BITS + 1 }, (_, bits) =>
  [...'rwxrwxrwx'].map((letter, index) => ((bits >> (8 - index)) & 1 ? letter : '-')).join(''),
);

/**
 * An entry as clients see it: type and mode are those of what a link names, everything else is the link's own
 * (contract e2b.md section 9.3).
 */
export function toEntryInfo(entry: GuestEntry): MessageInitShape<typeof EntryInfoSchema> {
  const { type, mode } = entry.link ?? entry;
  return {
    name: basename(entry.path),
    type: TYPES[type].type,
    path: entry.path,
    size: entry.size,
    mode: mode & PERMISSION_BITS,
    permissions: formatPermissions(entry.type, entry.mode),
    owner: entry.owner,
    group: entry.group,
    modifiedTime: toTimestamp(entry.mtimeNs),
    ...(entry.link === undefined ? {} : { symlinkTarget: entry.link.target }),
    metadata: metadataOf(entry),
  };
}

/** The same as the object its JSON is made of: what the protocol library would write, at a fraction of its cost. */
export function toEntryJson(entry: GuestEntry): Readonly<Record<string, unknown>> {
  const { type, mode } = entry.link ?? entry;
  const name = basename(entry.path);
  const bits = mode & PERMISSION_BITS;
  // What has its default value is left out, by JSON.stringify where it is undefined.
  return {
    name: name || undefined,
    type: TYPES[type].name,
    path: entry.path || undefined,
    size: entry.size === 0n ? undefined : String(entry.size),
    mode: bits || undefined,
    permissions: formatPermissions(entry.type, entry.mode),
    owner: entry.owner || undefined,
    group: entry.group || undefined,
    modifiedTime: toRfc3339(entry.mtimeNs),
    symlinkTarget: entry.link?.target,
    metadata: entry.xattrs.size === 0 ? undefined : metadataOf(entry),
  } satisfies Partial<Record<keyof EntryInfo, unknown>>;
}

function metadataOf({ xattrs }: GuestEntry): Record<string, string> {
  return Object.fromEntries(
    [...xattrs].map(([name, value]) => [name, Buffer.from(value).toString('utf8').toWellFormed()]),
  );
}

/** Go's notation: a letter for the type and every special bit, `-` when there is none, then the nine permissions. */
function formatPermissions(type: EntryType, mode: number): string {
  const [kind = '', character = ''] = TYPES[type].letters;
  const setuid = (mode & SETUID) !== 0 ? 'u' : '';
  const setgid = (mode & SETGID) !== 0 ? 'g' : '';
  const sticky = (mode & STICKY) !== 0 ? 't' : '';
  return `${kind + setuid + setgid + character + sticky || '-'}${PERMISSIONS[mode & PERMISSION_BITS]}`;
}

function toTimestamp(nanoseconds: bigint): { readonly seconds: bigint; readonly nanos: number } {
  // Timestamps before the epoch have positive nanoseconds too.
  const nanos = ((nanoseconds % NANOSECONDS) + NANOSECONDS) % NANOSECONDS;
  return { seconds: (nanoseconds - nanos) / NANOSECONDS, nanos: Number(nanos) };
}

/** With no, three, six or nine digits behind the second, as few as it takes. */
function toRfc3339(nanoseconds: bigint): string {
  const { seconds, nanos } = toTimestamp(nanoseconds);
  const second = new Date(Number(seconds) * 1000).toISOString().slice(0, 19);
  if (nanos === 0) return `${second}Z`;
  const digits = String(nanos).padStart(9, '0');
  return `${second}.${digits.replace(/(?:000){1,2}$/, '')}Z`;
}
