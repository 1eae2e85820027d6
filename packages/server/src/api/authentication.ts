import { PlatformError } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';
import { equalsSecret } from '../secrets/equality.ts';

/** Throws `unauthenticated` unless the headers carry exactly one right key. */
export type Authenticate = (headers: Readonly<Record<string, string | string[] | undefined>>) => void;

/**
 * API-key check (agentenv.md section 2.1). Node joins repeated headers with a comma, which no key may contain, so two
 * keys never equal the right one.
 */
export function createAuthentication(apiKey: string): Authenticate {
  return (headers) => {
    const given = headers[HEADERS.apiKey];
    if (given === undefined || given === '')
      throw new PlatformError('unauthenticated', 'the X-API-Key header is missing');
    if (!equalsSecret(given, apiKey)) throw new PlatformError('unauthenticated', 'the API key is not valid');
  };
}
