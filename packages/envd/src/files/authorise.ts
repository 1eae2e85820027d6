import { type Clock, PlatformError } from '@agentenv/core';
import { constantTimeEqual } from '../http/access.ts';
import { signFileRequest } from './signature.ts';

export interface FileAccess {
  /** undefined: the sandbox guards nothing. */
  readonly accessToken: string | undefined;
  readonly clock: Clock;
}

/**
 * Lets a `/files` request pass or throws `unauthenticated`: by the token header when it is there, else by the query's
 * signature, which is compared before its expiry is looked at (contract e2b.md section 8.1).
 */
export function authoriseFileRequest(
  operation: 'read' | 'write',
  header: string | undefined,
  query: URLSearchParams,
  { accessToken, clock }: FileAccess,
): void {
  if (accessToken === undefined) return;
  if (header !== undefined && header !== '') {
    if (constantTimeEqual(header, accessToken)) return;
    throw unauthenticated('access token present in header but does not match');
  }
  const signature = query.get('signature');
  if (signature === null || signature === '') throw unauthenticated('missing signature query parameter');

  const expiration = query.get('signature_expiration') ?? undefined;
  const expected = signFileRequest(
    { path: query.get('path') ?? '', operation, username: query.get('username') ?? '', expiration },
    accessToken,
  );
  if (!constantTimeEqual(signature, expected)) throw unauthenticated('invalid signature');
  if (expiration !== undefined && !isInFuture(expiration, clock)) throw unauthenticated('signature is already expired');
}

/** An expiry that is no whole number of seconds cannot be in the future. */
function isInFuture(expiration: string, clock: Clock): boolean {
  return /^\d{1,15}$/.test(expiration) && Number(expiration) >= Math.floor(clock.now() / 1000);
}

function unauthenticated(message: string): PlatformError {
  return new PlatformError('unauthenticated', message);
}
