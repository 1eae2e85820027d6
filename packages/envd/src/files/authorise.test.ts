import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { authoriseFileRequest } from './authorise.ts';
import { signFileRequest } from './signature.ts';

const TOKEN = 'a-token';
const NOW_S = 1_800_000_000;
const clock = createFakeClock(NOW_S * 1000 + 999);

function attempt(query: Record<string, string>, header?: string, accessToken: string | undefined = TOKEN): string {
  try {
    authoriseFileRequest('read', header, new URLSearchParams(query), { accessToken, clock });
    return 'ok';
  } catch (caught) {
    return caught instanceof Error ? caught.message : String(caught);
  }
}

function signed(expiration?: number): Record<string, string> {
  const signature = signFileRequest(
    { path: 'a/../b', operation: 'read', username: 'root', expiration: expiration?.toString() },
    TOKEN,
  );
  const query = { path: 'a/../b', username: 'root', signature };
  return expiration === undefined ? query : { ...query, signature_expiration: String(expiration) };
}

describe('authorisation of file requests', () => {
  test('an unsecured sandbox lets everything pass', () => {
    expect(() =>
      authoriseFileRequest('write', undefined, new URLSearchParams(), { accessToken: undefined, clock }),
    ).not.toThrow();
  });

  test('the token header decides where it is present', () => {
    expect(attempt({}, TOKEN)).toBe('ok');
    expect(attempt(signed(), 'wrong')).toBe('access token present in header but does not match');
  });

  test('without the header a signature is required and compared', () => {
    expect(attempt({ path: 'a' })).toBe('missing signature query parameter');
    expect(attempt(signed())).toBe('ok');
    expect(attempt({ ...signed(), path: 'b' })).toBe('invalid signature');
    expect(attempt({ ...signed(), username: 'user' })).toBe('invalid signature');
    expect(attempt({ ...signed(), signature_expiration: String(NOW_S + 60) })).toBe('invalid signature');
    expect(attempt({ ...signed(), signature: 'v1_' })).toBe('invalid signature');
  });

  test('a signature for reading does not write', () => {
    const query = new URLSearchParams(signed());
    expect(() => authoriseFileRequest('write', undefined, query, { accessToken: TOKEN, clock })).toThrow(
      'invalid signature',
    );
  });

  test('an expiry passes while it is not before the present second', () => {
    expect(attempt(signed(NOW_S + 1))).toBe('ok');
    expect(attempt(signed(NOW_S))).toBe('ok');
    expect(attempt(signed(NOW_S - 1))).toBe('signature is already expired');
  });

  test('the signature is compared before its expiry is looked at', () => {
    expect(attempt({ ...signed(NOW_S - 1), signature: 'v1_x' })).toBe('invalid signature');
  });

  test('an expiry that is no number of seconds is expired even when it is signed', () => {
    const signature = signFileRequest({ path: '', operation: 'read', username: '', expiration: 'never' }, TOKEN);
    expect(attempt({ signature, signature_expiration: 'never' })).toBe('signature is already expired');
  });
});
