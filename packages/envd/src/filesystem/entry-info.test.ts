import type { GuestEntry } from '@agentenv/agent';
import { EntryInfoSchema, FileType } from '@agentenv/protocol/filesystem';
import { create, toJsonString } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { toEntryInfo, toEntryJson } from './entry-info.ts';

const file: GuestEntry = {
  path: '/home/user/a.txt',
  type: 'file',
  size: 4n,
  mode: 0o644,
  uid: 1000,
  gid: 1000,
  owner: 'user',
  group: 'user',
  mtimeNs: 1_500_000_000n,
  link: undefined,
  inode: 7n,
  xattrs: new Map([['author', Buffer.from('Jo')]]),
};

describe('entry info', () => {
  test('a plain file', () => {
    expect(toEntryInfo(file)).toEqual({
      name: 'a.txt',
      type: FileType.FILE,
      path: '/home/user/a.txt',
      size: 4n,
      mode: 0o644,
      permissions: '-rw-r--r--',
      owner: 'user',
      group: 'user',
      modifiedTime: { seconds: 1n, nanos: 500_000_000 },
      metadata: { author: 'Jo' },
    });
  });

  test.each([
    ['directory', 0o755, 'drwxr-xr-x'],
    ['directory', 0o1777, 'dtrwxrwxrwx'],
    ['directory', 0o2755, 'dgrwxr-xr-x'],
    ['symlink', 0o777, 'Lrwxrwxrwx'],
    ['file', 0o4755, 'urwxr-xr-x'],
    ['file', 0, '----------'],
    ['fifo', 0o644, 'prw-r--r--'],
    ['socket', 0o755, 'Srwxr-xr-x'],
    ['character-device', 0o666, 'Dcrw-rw-rw-'],
    ['block-device', 0o660, 'Drw-rw----'],
    ['unknown', 0o660, '?rw-rw----'],
  ] as const)('%s %o is %s', (type, mode, expected) => {
    expect(toEntryInfo({ ...file, type, mode }).permissions).toBe(expected);
  });

  test('a link has type and mode of its target and everything else of its own', () => {
    const link = { target: '/etc', type: 'directory', mode: 0o1755 } as const;
    expect(toEntryInfo({ ...file, type: 'symlink', mode: 0o777, size: 9n, link })).toMatchObject({
      type: FileType.DIRECTORY,
      mode: 0o755,
      permissions: 'Lrwxrwxrwx',
      size: 9n,
      symlinkTarget: '/etc',
    });
  });

  test('a link that leads nowhere has no type', () => {
    const link = { target: '/home/user/a.txt', type: 'unknown', mode: 0 } as const;
    expect(toEntryInfo({ ...file, type: 'symlink', link }).type).toBe(FileType.UNSPECIFIED);
  });

  test('a time before the epoch', () => {
    expect(toEntryInfo({ ...file, mtimeNs: -1n }).modifiedTime).toEqual({ seconds: -1n, nanos: 999_999_999 });
  });
});

test('the JSON of an entry is what the protocol library writes', () => {
  const text = fc.oneof(fc.string(), fc.constantFrom('', '"', '\\', '\u2028', '\ufffd', '__proto__'));
  const type = fc.constantFrom(...(['file', 'directory', 'fifo', 'socket', 'block-device', 'unknown'] as const));
  const mode = fc.integer({ min: 0, max: 0o7777 });
  const entry = fc.record({
    path: text.map((name) => `/${name}`),
    type: fc.oneof(type, fc.constant('character-device' as const)),
    size: fc.bigInt({ min: 0n, max: 2n ** 63n - 1n }),
    mode,
    owner: text,
    group: text,
    mtimeNs: fc.oneof(
      fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }),
      fc.bigInt({ min: -5n, max: 5n }).map((digits) => digits * 1_000_000n),
      fc.bigInt({ min: -5n, max: 5n }).map((digits) => digits * 1_000_000_000n),
    ),
    xattrs: fc.dictionary(fc.string(), fc.uint8Array(), { noNullPrototype: true }),
    link: fc.option(fc.record({ target: text, type, mode }), { nil: undefined }),
  });
  fc.assert(
    fc.property(entry, ({ xattrs, ...fields }) => {
      const guest = { ...file, ...fields, xattrs: new Map(Object.entries(xattrs)) };
      const message = create(EntryInfoSchema, toEntryInfo(guest));
      expect(JSON.parse(JSON.stringify(toEntryJson(guest)))).toEqual(
        JSON.parse(toJsonString(EntryInfoSchema, message)),
      );
    }),
    { numRuns: 500 },
  );
});
