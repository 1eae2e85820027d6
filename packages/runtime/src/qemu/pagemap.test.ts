import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { findMapping, privateExtents } from './pagemap.ts';

const PRESENT = 1n << 63n;
const SWAPPED = 1n << 62n;
const FILE = 1n << 61n;
const SOFT_DIRTY = 1n << 55n;

function entries(...values: readonly bigint[]): Buffer {
  const buffer = Buffer.alloc(values.length * 8);
  for (const [index, value] of values.entries()) buffer.writeBigUInt64LE(value, index * 8);
  return buffer;
}

describe('private pages of a mapping', () => {
  test('are those that are present or swapped and anonymous', () => {
    const map = entries(0n, PRESENT, PRESENT | FILE, SWAPPED, SWAPPED | FILE, FILE, SOFT_DIRTY, PRESENT | 0x1234n);
    expect(privateExtents(map)).toEqual([
      { offset: 4096, length: 4096 },
      { offset: 3 * 4096, length: 4096 },
      { offset: 7 * 4096, length: 4096 },
    ]);
  });

  test('come as maximal ascending runs that cover exactly the changed pages', () => {
    fc.assert(
      fc.property(fc.array(fc.boolean()), (changed) => {
        const extents = privateExtents(entries(...changed.map((page) => (page ? PRESENT : PRESENT | FILE))));
        const covered = new Set<number>();
        let previousEnd = -1;
        for (const { offset, length } of extents) {
          expect(offset).toBeGreaterThan(previousEnd);
          previousEnd = offset + length;
          for (let page = offset / 4096; page < previousEnd / 4096; page++) covered.add(page);
        }
        expect(changed.every((page, index) => page === covered.has(index))).toBe(true);
        expect(covered.size).toBe(changed.filter(Boolean).length);
      }),
    );
  });
});

describe('a mapping', () => {
  const MAPS = [
    '55d0c0a00000-55d0c0b00000 r--p 00000000 fe:00 131 /usr/bin/qemu-system-x86_64',
    '7f0000000000-7f0040000000 rw-p 00000000 fe:00 99 /home/a dir/base.mem',
    '7f0050000000-7f0050001000 rw-p 00001000 fe:00 98 /home/part.mem',
    '7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]',
  ].join('\n');

  test('is found by the path and size of its file, spaces included', () => {
    expect(findMapping(MAPS, '/home/a dir/base.mem', 1 << 30)).toEqual({ start: 0x7f00_0000_0000 });
  });

  test('that is only a part of the file or another file does not count', () => {
    expect(findMapping(MAPS, '/home/a dir/base.mem', 1 << 29)).toBeUndefined();
    expect(findMapping(MAPS, '/home/part.mem', 4096)).toBeUndefined();
    expect(findMapping(MAPS, '/home/a dir/base', 1 << 30)).toBeUndefined();
  });
});
