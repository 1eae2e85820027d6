import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { decodeLayerIndex, encodeLayerIndex, layerHeadBytes } from './memory-layer.ts';
import type { Extent } from './pagemap.ts';

const PAGE = 4096;
const MEMORY = 1024 * PAGE;

/** Ascending runs with gaps inside the memory. */
const runs = fc
  .uniqueArray(fc.integer({ min: 0, max: 1024 }), { maxLength: 200 })
  .map((edges) => edges.sort((left, right) => left - right))
  .map((edges) => {
    const extents: Extent[] = [];
    for (let index = 0; index + 1 < edges.length; index += 2) {
      const [from = 0, to = 0] = edges.slice(index, index + 2);
      extents.push({ offset: from * PAGE, length: (to - from) * PAGE });
    }
    return extents;
  });

function sizeOf(head: Buffer, extents: readonly Extent[]): number {
  return head.length + extents.reduce((sum, { length }) => sum + length, 0);
}

describe('the head of a memory layer', () => {
  test('any runs come back as they were, and data begins on a page', () => {
    fc.assert(
      fc.property(runs, (extents) => {
        const head = encodeLayerIndex(MEMORY, extents);
        const index = decodeLayerIndex(head, MEMORY, sizeOf(head, extents));
        expect(index.extents).toEqual(extents);
        expect(index.dataOffset % PAGE).toBe(0);
        expect(layerHeadBytes(head.subarray(0, 32), MEMORY)).toBe(head.length);
      }),
    );
  });

  test('a file that lost its end or has more is refused', () => {
    fc.assert(
      fc.property(runs, fc.integer({ min: -PAGE, max: PAGE }), (extents, change) => {
        fc.pre(change !== 0);
        const head = encodeLayerIndex(MEMORY, extents);
        expect(() => decodeLayerIndex(head, MEMORY, sizeOf(head, extents) + change)).toThrow('instead of');
      }),
    );
  });

  test('no damage makes a page lie outside the memory', () => {
    fc.assert(
      fc.property(runs, fc.nat({ max: 4095 }), fc.nat({ max: 255 }), (extents, at, value) => {
        const head = encodeLayerIndex(MEMORY, extents);
        const size = sizeOf(head, extents);
        head[at] = value;
        try {
          const index = decodeLayerIndex(head, MEMORY, size);
          let end = 0;
          for (const { offset, length } of index.extents) {
            expect(offset).toBeGreaterThanOrEqual(end);
            end = offset + length;
          }
          expect(end).toBeLessThanOrEqual(MEMORY);
        } catch (error) {
          expect(String(error)).toMatch(/memory layer/);
        }
      }),
    );
  });

  test.each<[string, (head: Buffer) => void, string]>([
    ['another kind of file', (head) => head.write('XXXX'), 'not a memory layer'],
    ['a later version', (head) => head.writeUInt32LE(2, 8), 'version 2'],
    ['another guest size', (head) => head.writeBigUInt64LE(8192n, 16), 'the guest has'],
    ['more runs than pages', (head) => head.writeUInt32LE(4_000_000, 24), 'runs'],
    ['an empty run', (head) => head.writeUInt32LE(0, 36), 'are wrong'],
    ['a run beyond the memory', (head) => head.writeUInt32LE(1024, 32), 'are wrong'],
  ])('%s is refused', (_what, damage, message) => {
    const extents = [{ offset: 0, length: PAGE }];
    const head = encodeLayerIndex(MEMORY, extents);
    damage(head);
    expect(() => decodeLayerIndex(head, MEMORY, sizeOf(head, extents))).toThrow(message);
  });
});
