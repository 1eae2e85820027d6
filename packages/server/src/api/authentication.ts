import { PlatformError } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';
import { bearerToken } from '../secrets/bearer-token.ts';
import { equalsSecret } from '../secrets/equality.ts';

/** How the key of an operation may be given: a security scheme of the OpenAPI document. */
export type SecurityScheme = 'apiKey' | 'bearer';

/** Throws `unauthenticated` unless the headers carry exactly one right key in one of the ways the operation takes. */
export type Authenticate = (
  headers: Readonly<Record<string, string | string[] | undefined>>,
  schemes: readonly SecurityScheme[],
) => void;

/**
 * API-key check (agentenv.md section 2.1). Node joins repeated headers with a comma, which no key may contain, so two
 * keys never equal the right one. `bearer` is the same key as an access token, where clients have nothing else.
 */
export function createAuthentication(apiKey: string): Authenticate {
  return (headers, schemes) => {
    const given = headers[HEADERS.apiKey] || (schemes.includes('bearer') ? bearerToken(headers.authorization) : '');
    if (given === undefined || given === '') {
      throw new PlatformError('unauthenticated', 'the X-API-Key header is missing');
    }
    if (!equalsSecret(given, apiKey)) throw new PlatformError('unauthenticated', 'the API key is not valid');
  };
}
