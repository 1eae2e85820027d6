import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createSampleSeries, type SampleCodec, type SampleSeries } from './sample-series.ts';

interface Sample {
  readonly at: number;
  readonly value: number;
}

const CODEC: SampleCodec<Sample> = {
  width: 2,
  encode: ({ at, value }) => [at, value],
  decode: ([at = Number.NaN, value = Number.NaN]) => ({ at, value }),
};
const sample = (at: number): Sample => ({ at, value: at * 10 });

function filled(capacity: number, times: readonly number[]): SampleSeries<Sample> {
  const series = createSampleSeries(capacity, CODEC);
  for (const at of times) series.push(sample(at));
  return series;
}

/** The times of everything it holds; every sample must have kept its value. */
function times(series: SampleSeries<Sample>): readonly number[] {
  const all = series.between(Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY);
  expect(all).toEqual(all.map(({ at }) => sample(at)));
  return all.map(({ at }) => at);
}

const upTo = (last: number) => Array.from({ length: last }, (_, index) => index + 1);

describe('a series of samples', () => {
  it('answers a range, both ends included, oldest first', () => {
    const series = filled(16, [10, 20, 30, 40]);
    expect(series.between(20, 30)).toEqual([sample(20), sample(30)]);
    expect(series.between(41, 99)).toEqual([]);
    expect(series.newest).toEqual(sample(40));
    expect(createSampleSeries(4, CODEC).newest).toBeUndefined();
  });

  it('keeps the younger half as it was sampled and the older one coarser with age', () => {
    expect(times(filled(8, upTo(8)))).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
    expect(times(filled(8, upTo(9)))).toEqual([1, 3, 5, 6, 7, 8, 9]);
    const long = times(filled(8, upTo(40)));
    expect(long[0]).toBe(1);
    expect(long.slice(-4)).toEqual([37, 38, 39, 40]);
  });

  it('drops what does not come later than the newest', () => {
    expect(times(filled(4, [5, 5, 4, 6]))).toEqual([5, 6]);
  });

  it('never grows beyond its capacity, loses neither end and stays in order', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 4, max: 40 }),
        fc.array(fc.integer({ min: 1, max: 50 }), { minLength: 1, maxLength: 300 }),
        (capacity, steps) => {
          const taken: number[] = [];
          for (const step of steps) taken.push((taken.at(-1) ?? 0) + step);
          const series = filled(capacity, taken);
          expect(series.length).toBeLessThanOrEqual(capacity);
          const kept = times(series);
          expect(kept[0]).toBe(taken[0]);
          expect(kept.at(-1)).toBe(taken.at(-1));
          expect(kept).toEqual(kept.toSorted((left, right) => left - right));
        },
      ),
      { seed: 11 },
    );
  });
});
