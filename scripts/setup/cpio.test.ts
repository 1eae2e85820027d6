import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type CpioEntry, cpioArchive, S_IFCHR, S_IFDIR, S_IFLNK, S_IFREG } from './cpio.ts';

interface Member {
  readonly path: string;
  readonly inode: number;
  readonly mode: number;
  readonly device: readonly [number, number];
  readonly data: Buffer;
}

/** Reads a `newc` archive the way the kernel does: aligned headers, names with their NUL, until the trailer. */
function readArchive(archive: Buffer): { members: Member[]; end: number } {
  const members: Member[] = [];
  let offset = 0;
  for (;;) {
    expect(archive.toString('latin1', offset, offset + 6)).toBe('070701');
    const field = (index: number) =>
      Number.parseInt(archive.toString('latin1', offset + 6 + index * 8, offset + 14 + index * 8), 16);
    const nameEnd = offset + 110 + field(11);
    const path = archive.toString('utf8', offset + 110, nameEnd - 1);
    const dataStart = (nameEnd + 3) & ~3;
    const dataEnd = dataStart + field(6);
    if (path === 'TRAILER!!!') return { members, end: (dataEnd + 511) & ~511 };
    const data = archive.subarray(dataStart, dataEnd);
    members.push({ path, inode: field(0), mode: field(1), device: [field(9), field(10)], data });
    offset = (dataEnd + 3) & ~3;
  }
}

const entry: fc.Arbitrary<CpioEntry> = fc.record({
  path: fc.string({ minLength: 1, maxLength: 40 }).filter((path) => !path.includes('\0')),
  mode: fc.constantFrom(S_IFREG | 0o644, S_IFREG | 0o755),
  data: fc.uint8Array({ maxLength: 70 }),
});

describe('cpioArchive', () => {
  it('round-trips any files through a reader that follows the format', () => {
    fc.assert(
      fc.property(fc.array(entry, { maxLength: 12 }), (entries) => {
        const archive = cpioArchive(entries);
        const { members, end } = readArchive(archive);
        expect(end).toBe(archive.length);
        expect(members.map(({ path, mode, data }) => ({ path, mode, data: [...data] }))).toEqual(
          entries.map(({ path, mode, data }) => ({ path, mode, data: [...(data ?? [])] })),
        );
      }),
    );
  });

  it('keeps directories, links and device numbers', () => {
    const { members } = readArchive(
      cpioArchive([
        { path: 'dev', mode: S_IFDIR | 0o755 },
        { path: 'dev/console', mode: S_IFCHR | 0o600, device: [5, 1] },
        { path: 'sh', mode: S_IFLNK | 0o777, data: Buffer.from('bin/sh') },
      ]),
    );
    expect(members.map(({ path, mode, device, data }) => [path, mode, device, data.toString()])).toEqual([
      ['dev', 0o040755, [0, 0], ''],
      ['dev/console', 0o020600, [5, 1], ''],
      ['sh', 0o120777, [0, 0], 'bin/sh'],
    ]);
  });

  it('gives the same bytes for the same entries, and other inodes for a second archive', () => {
    const entries = [{ path: 'init', mode: S_IFREG | 0o755, data: Buffer.from('x') }];
    expect(cpioArchive(entries)).toEqual(cpioArchive(entries));
    expect(readArchive(cpioArchive(entries, 500)).members[0]?.inode).toBe(500);
  });
});
