import { type ClientRequest, request as httpRequest } from 'node:http';
import type { Duplex } from 'node:stream';

/** Longest head of an answer, bytes; longer ones are no proper answers. */
const MAX_ANSWER_HEAD_BYTES = 64 * 1024;

export interface GuestRequestHead {
  readonly method: string | undefined;
  /** Path and query, not a byte changed. */
  readonly url: string;
  /** Names and values in turn, complete: nothing is added. */
  readonly headers: string[];
}

/** Begins a request on a connection into a sandbox; throws when Node refuses to write such a head. */
export function createGuestRequest(connection: Duplex, { method, url, headers }: GuestRequestHead): ClientRequest {
  const outgoing = httpRequest({
    method: method ?? 'GET',
    path: url,
    headers,
    setDefaultHeaders: false,
    createConnection: () => connection,
    maxHeaderSize: MAX_ANSWER_HEAD_BYTES,
  });
  // The size of the head is the limit; by number Node would leave the last ones out without a word.
  outgoing.maxHeadersCount = 0;
  return outgoing;
}
