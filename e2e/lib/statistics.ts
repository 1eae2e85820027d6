/** The middle value; of an even count the mean of the middle two. */
export function median(values: readonly number[]): number {
  return percentile(values, 50);
}

/** Percentile by linear interpolation between closest ranks; `percent` 0–100. */
export function percentile(values: readonly number[], percent: number): number {
  const sorted = values.toSorted((left, right) => left - right);
  const position = ((sorted.length - 1) * percent) / 100;
  const below = sorted[Math.floor(position)] ?? Number.NaN;
  const above = sorted[Math.ceil(position)] ?? Number.NaN;
  return below + (above - below) * (position - Math.floor(position));
}
