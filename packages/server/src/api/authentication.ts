import { createHash, timingSafeEqual } from 'node:crypto';
import { PlatformError } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';

/** Throws `unauthenticated` unless the headers carry exactly one right key. */
export type Authenticate = (headers: Readonly<Record<string, string | string[] | undefined>>) => void;

/**
 * API-key check (agentenv.md section 2.1). Node joins repeated headers with a comma, which no key may contain, so two
 * keys never equal the right one. Digests are compared, so the time taken tells nothing about the key.
 */
export function createAuthentication(apiKey: string): Authenticate {
  const expected = digest(apiKey);
  return (headers) => {
    const given = headers[HEADERS.apiKey];
    if (given === undefined || given === '')
      throw new PlatformError('unauthenticated', 'the X-API-Key header is missing');
    if (typeof given !== 'string' || !timingSafeEqual(digest(given), expected)) {
      throw new PlatformError('unauthenticated', 'the API key is not valid');
    }
  };
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}
