/**
 * Which of layers of `sizes`, oldest first, are worth merging: the index of the oldest that is no larger than all above it
 * together, -1 for none. What stays below it is larger than all above, so what was written long ago is not written again and
 * again, and the logarithm of what there is bounds the number of layers.
 */
export function oldestToMerge(sizes: readonly number[]): number {
  let above = sizes.reduce((sum, size) => sum + size, 0);
  return sizes.findIndex((size) => {
    above -= size;
    return size <= above;
  });
}
