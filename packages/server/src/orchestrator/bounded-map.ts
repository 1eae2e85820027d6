/** Runs `work` for every item, at most `limit` at a time; resolves with the outcomes in the order of the items. */
export async function mapBounded<Item, Result>(
  items: readonly Item[],
  limit: number,
  work: (item: Item) => Promise<Result>,
): Promise<readonly PromiseSettledResult<Result>[]> {
  const outcomes: PromiseSettledResult<Result>[] = [];
  const queue = items.entries();
  async function worker(): Promise<void> {
    for (const [index, item] of queue) {
      const [outcome] = await Promise.allSettled([work(item)]);
      outcomes[index] = outcome;
    }
  }
  await Promise.all(Array.from({ length: Math.min(limit, items.length) }, worker));
  return outcomes;
}
