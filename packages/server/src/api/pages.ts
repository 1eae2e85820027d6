import { compareNewestFirst, decodePageToken, encodePageToken, type PagePosition } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';

/**
 * One page of `items`, newest first. The token names the last item of the page before, so it stays right when items come
 * and go.
 */
export function paginate<Item>(
  items: readonly Item[],
  positionOf: (item: Item) => PagePosition,
  page: { readonly limit: number; readonly nextToken: string | undefined },
): { readonly items: readonly Item[]; readonly nextToken: string | undefined } {
  const sorted = items.toSorted((left, right) => compareNewestFirst(positionOf(left), positionOf(right)));
  const after = page.nextToken === undefined ? undefined : decodePageToken(page.nextToken, 'desc');
  const rest = after === undefined ? sorted : sorted.filter((item) => compareNewestFirst(positionOf(item), after) > 0);
  const shown = rest.slice(0, page.limit);
  const last = shown.at(-1);
  return {
    items: shown,
    nextToken: last !== undefined && rest.length > shown.length ? encodePageToken(positionOf(last), 'desc') : undefined,
  };
}

/** The header that names the next page; absent on the last one (contract e2b.md T7). */
export function nextPageHeader(nextToken: string | undefined): Readonly<Record<string, string>> {
  return nextToken === undefined ? {} : { [HEADERS.nextToken]: nextToken };
}
