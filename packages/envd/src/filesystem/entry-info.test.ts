import type { GuestEntry } from '@agentenv/agent';
import { FileType } from '@agentenv/protocol/filesystem';
import { describe, expect, test } from 'vitest';
import { toEntryInfo } from './entry-info.ts';

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
    ['other', 0o660, '?rw-rw----'],
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
    const link = { target: '/home/user/a.txt', type: 'other', mode: 0 } as const;
    expect(toEntryInfo({ ...file, type: 'symlink', link }).type).toBe(FileType.UNSPECIFIED);
  });

  test('a time before the epoch', () => {
    expect(toEntryInfo({ ...file, mtimeNs: -1n }).modifiedTime).toEqual({ seconds: -1n, nanos: 999_999_999 });
  });
});
