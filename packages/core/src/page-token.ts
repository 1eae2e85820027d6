import { PlatformError } from './errors.ts';
import { isPlatformId, isUuid } from './ids.ts';

export type ListOrder = 'asc' | 'desc';

/** The last item of a page: where the next one goes on. */
export interface PagePosition {
  /** When it began to exist, milliseconds since the epoch. */
  readonly startedAt: number;
  readonly id: string;
}

/** Order of every list unless asked otherwise: newest first, ids ascending on ties (contract e2b.md 6.2). */
export function compareNewestFirst(left: PagePosition, right: PagePosition): number {
  if (left.startedAt !== right.startedAt) return right.startedAt - left.startedAt;
  return left.id < right.id ? -1 : Number(left.id > right.id);
}

const RFC3339 = /^(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?Z$/;
/** No token of ours is longer; a longer one is not decoded at all. */
const TOKEN_MAX_LENGTH = 256;
const ASCENDING_SUFFIX = '__asc';

function invalidToken(): PlatformError {
  return new PlatformError('invalid_argument', 'invalid next token');
}

/** The opaque token for the page after `position`: base64url of `<RFC 3339 time>__<id>`, plus `__asc` when ascending. */
export function encodePageToken(position: PagePosition, order: ListOrder): string {
  const text = `${new Date(position.startedAt).toISOString()}__${position.id}${order === 'asc' ? ASCENDING_SUFFIX : ''}`;
  return new TextEncoder().encode(text).toBase64({ alphabet: 'base64url', omitPadding: true });
}

function parseTime(text: string): number {
  const match = RFC3339.exec(text);
  if (match?.[1] === undefined) throw invalidToken();
  const seconds = Date.parse(`${match[1]}Z`);
  // Date.parse turns 31 February into March; a token of ours never holds such a day.
  if (Number.isNaN(seconds) || !new Date(seconds).toISOString().startsWith(match[1])) throw invalidToken();
  return seconds + Number((match[2] ?? '').padEnd(3, '0').slice(0, 3));
}

/** The inverse of `encodePageToken`; anything else, also a token made for the other order, is `invalid next token`. */
export function decodePageToken(token: string, order: ListOrder): PagePosition {
  if (token === '' || token.length > TOKEN_MAX_LENGTH) throw invalidToken();
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(Uint8Array.fromBase64(token, { alphabet: 'base64url' }));
  } catch {
    // Whatever is wrong with the encoding, the client learns only that the token is not one of ours.
    throw invalidToken();
  }
  if (text.endsWith(ASCENDING_SUFFIX) !== (order === 'asc')) throw invalidToken();
  const body = order === 'asc' ? text.slice(0, -ASCENDING_SUFFIX.length) : text;
  const separator = body.indexOf('__');
  const id = body.slice(separator + 2);
  if (separator === -1 || !(isPlatformId(id) || isUuid(id))) throw invalidToken();
  return { startedAt: parseTime(body.slice(0, separator)), id };
}
