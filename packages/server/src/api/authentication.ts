import { timingSafeEqual } from 'node:crypto';
import { PlatformError } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';

/** Throws `unauthenticated` unless the headers carry exactly one right key. */
export type Authenticate = (headers: Readonly<Record<string, string | string[] | undefined>>) => void;

/**
 * API-key check (agentenv.md section 2.1). Node joins repeated headers with a comma, which no key may contain, so two
 * keys never equal the right one. The time taken tells at most the length of the key.
 */
export function createAuthentication(apiKey: string): Authenticate {
  const expected = Buffer.from(apiKey);
  return (headers) => {
    const given = headers[HEADERS.apiKey];
    if (given === undefined || given === '')
      throw new PlatformError('unauthenticated', 'the X-API-Key header is missing');
    if (typeof given !== 'string' || !equals(Buffer.from(given), expected)) {
      throw new PlatformError('unauthenticated', 'the API key is not valid');
    }
  };
}

function equals(given: Buffer, expected: Buffer): boolean {
  return given.length === expected.length && timingSafeEqual(given, expected);
}
