import { describe, expect, test } from 'vitest';
import { resolveGuestPath } from './guest-path.ts';

const user = { home: '/home/user', defaultWorkdir: '/work' };

describe('guest paths', () => {
  test.each([
    ['', '/work'],
    ['~', '/home/user'],
    ['~/a/../b', '/home/user/b'],
    ['hello.txt', '/home/user/hello.txt'],
    ['./a//b', '/home/user/a/b'],
    ['../x', '/home/x'],
    ['/etc/../tmp//x', '/etc/../tmp//x'],
    ['/', '/'],
    ['a~b', '/home/user/a~b'],
  ])('%j means %j', (path, expected) => {
    expect(resolveGuestPath(path, user)).toBe(expected);
  });

  test('an empty path is the home when there is no default working directory', () => {
    expect(resolveGuestPath('', { home: '/root', defaultWorkdir: undefined })).toBe('/root');
  });

  test.each(['~other', '~other/x', 'a\0b', 'a\ud800', '/'.padEnd(5000, 'x')])('refuses %j', (path) => {
    expect(() => resolveGuestPath(path, user)).toThrow(expect.objectContaining({ code: 'invalid_argument' }));
  });
});
