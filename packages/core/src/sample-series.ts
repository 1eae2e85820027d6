/** How a sample is kept: as a row of numbers, of which a million are cheap; the first is its time. */
export interface SampleCodec<Sample> {
  readonly width: number;
  encode(sample: Sample): readonly [at: number, ...values: number[]];
  decode(row: Float64Array): Sample;
}

/**
 * The past of something that is sampled, in a bounded number of samples: the younger half stays as it was sampled, the
 * older half gets coarser the longer ago it was, so that the first sample is never lost.
 */
export interface SampleSeries<Sample> {
  readonly length: number;
  readonly newest: Sample | undefined;
  /** Samples come in the order of their time; one that is not younger than the newest is dropped. */
  push(sample: Sample): void;
  /** Those taken between the two times, both included, oldest first. */
  between(from: number, to: number): readonly Sample[];
}

const FIRST_ROWS = 8;

/** Creates an empty series of at most `capacity` samples, at least 4. Memory grows with what it holds. */
export function createSampleSeries<Sample>(capacity: number, codec: SampleCodec<Sample>): SampleSeries<Sample> {
  const { width } = codec;
  let rows = new Float64Array(0);
  let length = 0;

  const timeOf = (index: number): number => rows[index * width] ?? Number.NaN;
  const decode = (index: number): Sample => codec.decode(rows.slice(index * width, (index + 1) * width));

  function grow(): void {
    const larger = new Float64Array(Math.min(capacity, Math.max(FIRST_ROWS, length * 2)) * width);
    larger.set(rows);
    rows = larger;
  }

  /** Drops every second sample of the older half but the first: a quarter of the room is free again. */
  function thin(): void {
    const half = length >> 1;
    let kept = 0;
    for (let index = 0; index < length; index++) {
      if (index < half && index % 2 === 1) continue;
      rows.copyWithin(kept * width, index * width, (index + 1) * width);
      kept++;
    }
    length = kept;
  }

  return {
    get length() {
      return length;
    },
    get newest() {
      return length === 0 ? undefined : decode(length - 1);
    },
    push(sample) {
      const row = codec.encode(sample);
      if (length > 0 && row[0] <= timeOf(length - 1)) return;
      if (length === capacity) thin();
      else if (length * width === rows.length) grow();
      rows.set(row, length * width);
      length++;
    },
    between(from, to) {
      const found: Sample[] = [];
      for (let index = 0; index < length; index++) {
        const at = timeOf(index);
        if (at >= from && at <= to) found.push(decode(index));
      }
      return found;
    },
  };
}
