import { createSeededRandom } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { layersToMerge } from './disk-compactor.ts';

describe('which layers of a disk are merged', () => {
  test.each([
    [[], 0],
    [[1, 1, 1], 0],
    [[1, 1, 1, 1], 4],
    [[200, 1, 1, 1], 3],
    [[200, 100, 1, 1], 2],
    [[200, 100, 40, 1], 0],
    [[200, 100, 40, 0], 0],
    [[100, 100, 40, 1], 4],
    [[200, 70, 40, 30], 3],
    [[0, 0, 0, 0], 4],
  ])('of %j the newest %i', (sizes, count) => {
    expect(layersToMerge(sizes)).toBe(count);
  });

  test('there are never many, and little is written again and again', () => {
    const rng = createSeededRandom(3);
    let sizes = [200_000];
    let captured = 0;
    let written = 0;
    for (let capture = 0; capture < 1_000; capture++) {
      const size = 300 + rng.below(5_000);
      captured += size;
      sizes.push(size);
      for (let count = layersToMerge(sizes); count > 0; count = layersToMerge(sizes)) {
        const merged = sizes.slice(-count).reduce((sum, part) => sum + part, 0);
        written += merged;
        sizes = [...sizes.slice(0, -count), merged];
      }
      expect(sizes.length).toBeLessThanOrEqual(16);
    }
    expect(written / captured).toBeLessThan(Math.log2(captured));
  });
});
