/** One member of an archive; directories must come before what they hold. */
export interface CpioEntry {
  /** Without a leading slash. */
  readonly path: string;
  /** File type and permission bits, as in stat(2). */
  readonly mode: number;
  /** Contents of a file or target of a symbolic link. */
  readonly data?: Uint8Array;
  /** Major and minor number of a device node. */
  readonly device?: readonly [major: number, minor: number];
}

export const S_IFDIR = 0o040000;
export const S_IFREG = 0o100000;
export const S_IFLNK = 0o120000;
export const S_IFCHR = 0o020000;

const TRAILER = 'TRAILER!!!';

function member(path: string, fields: readonly number[], data: Uint8Array): Buffer {
  const name = Buffer.from(`${path}\0`);
  const header = `070701${fields.map((field) => field.toString(16).padStart(8, '0')).join('')}`;
  const head = Buffer.concat([Buffer.from(header), name]);
  return Buffer.concat([head, Buffer.alloc(-head.length & 3), data, Buffer.alloc(-data.length & 3)]);
}

/**
 * A `newc` archive as the kernel unpacks it into its initial root. The same entries give the same bytes: owner root,
 * time 0, inode numbers by position from `firstInode`. Archives may be concatenated when their inode ranges differ.
 */
export function cpioArchive(entries: readonly CpioEntry[], firstInode = 1): Buffer {
  const parts = entries.map((entry, index) => {
    const data = entry.data ?? new Uint8Array(0);
    const [major, minor] = entry.device ?? [0, 0];
    const links = (entry.mode & 0o170000) === S_IFDIR ? 2 : 1;
    const nameBytes = Buffer.byteLength(entry.path) + 1;
    const fields = [firstInode + index, entry.mode, 0, 0, links, 0, data.length, 0, 0, major, minor, nameBytes, 0];
    return member(entry.path, fields, data);
  });
  parts.push(member(TRAILER, [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, TRAILER.length + 1, 0], new Uint8Array(0)));
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  return Buffer.concat([...parts, Buffer.alloc(-length & 511)]);
}
