import { describe, expect, test } from 'vitest';
import { MERGED_MEMORY_LAYERS, type MemoryLayer, mergeFrom } from './memory-chain.ts';

const MEMORY = 1_000;

function layersOf(sizes: readonly number[]): readonly MemoryLayer[] {
  return sizes.map((bytes, index) => ({ path: `${index}`, bytes, first: index, last: index, known: undefined }));
}

describe('which memory layers are merged', () => {
  const short = Array.from({ length: MERGED_MEMORY_LAYERS - 1 }, () => 1);

  test.each<[string, readonly number[], number | undefined]>([
    ['none of an empty chain', [], undefined],
    ['none of few that are small', short, undefined],
    ['all of many of one size', [...short, 1], 0],
    ['not a large one below many small ones', [100, ...short], 1],
    ['not what is larger than all above it together', [400, 100, ...short], 2],
    ['a large one once those above hold as much', [20, ...short.slice(1), 20], 0],
    ['all when those above the lowest hold half of the memory', [900, 300, 201], 0],
    ['none of two, whatever they hold', [100, 900], undefined],
    ['all of a chain that would stay long', Array.from({ length: 12 }, (_, index) => 2 ** (12 - index)), 0],
  ])('%s', (_what, sizes, from) => {
    expect(mergeFrom(layersOf(sizes), MEMORY)).toBe(from);
  });
});
