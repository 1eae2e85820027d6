import { expect, test } from 'vitest';
import { mapBounded } from './bounded-map.ts';

test('runs at most so many at a time and gives every outcome in the order of the items', async () => {
  let active = 0;
  let most = 0;
  const outcomes = await mapBounded([5, 1, 4, 2, 3, 0], 2, async (item) => {
    active++;
    most = Math.max(most, active);
    for (let turn = 0; turn < item; turn++) await Promise.resolve();
    active--;
    if (item === 4) throw new Error('no 4');
    return item * 10;
  });
  expect(most).toBe(2);
  expect(outcomes.map((outcome) => (outcome.status === 'fulfilled' ? outcome.value : 'failed'))).toEqual([
    50,
    10,
    'failed',
    20,
    30,
    0,
  ]);
  expect(await mapBounded([], 3, async () => 1)).toEqual([]);
});
