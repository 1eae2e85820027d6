import { PlatformError } from '@agentenv/core';

/** Where an item stands in a list that is newest first, ids ascending on ties. */
export interface Position {
  /** Milliseconds since the epoch. */
  readonly createdAt: number;
  readonly id: string;
}

/** Longest token that is looked at, characters. */
const MAX_TOKEN = 512;

/** One page of `items`; the token names the last item of the page before, so it stays right when items come and go. */
export function paginate<Item>(
  items: readonly Item[],
  positionOf: (item: Item) => Position,
  page: { readonly limit: number; readonly nextToken: string | undefined },
): { readonly items: readonly Item[]; readonly nextToken: string | undefined } {
  const sorted = items.toSorted((left, right) => compare(positionOf(left), positionOf(right)));
  const after = page.nextToken === undefined ? undefined : decode(page.nextToken);
  const rest = after === undefined ? sorted : sorted.filter((item) => compare(positionOf(item), after) > 0);
  const shown = rest.slice(0, page.limit);
  const last = shown.at(-1);
  return {
    items: shown,
    nextToken: last !== undefined && rest.length > shown.length ? encode(positionOf(last)) : undefined,
  };
}

/** The header that names the next page; absent on the last one (contract e2b.md T7). */
export function nextPageHeader(nextToken: string | undefined): { readonly 'x-next-token'?: string } {
  return nextToken === undefined ? {} : { 'x-next-token': nextToken };
}

function compare(left: Position, right: Position): number {
  if (left.createdAt !== right.createdAt) return right.createdAt - left.createdAt;
  return left.id < right.id ? -1 : Number(left.id > right.id);
}

function encode({ createdAt, id }: Position): string {
  return Buffer.from(`${new Date(createdAt).toISOString()}__${id}`).toString('base64url');
}

function decode(token: string): Position {
  const text = token.length > MAX_TOKEN ? '' : Buffer.from(token, 'base64url').toString('utf8');
  const [, time, id] = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)__(.+)$/.exec(text) ?? [];
  const createdAt = Date.parse(time ?? '');
  if (id === undefined || Number.isNaN(createdAt)) throw new PlatformError('invalid_argument', 'invalid next token');
  return { createdAt, id };
}
