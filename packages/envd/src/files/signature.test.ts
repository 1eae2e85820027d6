import { describe, expect, test } from 'vitest';
import { signFileRequest } from './signature.ts';

const TOKEN = '0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0';

describe('file signature', () => {
  test('holds the vector of the contract', () => {
    const request = { path: 'hello.txt', operation: 'read', username: 'user', expiration: undefined } as const;
    expect(signFileRequest(request, TOKEN)).toBe('v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E');
  });

  test('differs by path, operation, user, token and expiration', () => {
    const base = { path: 'a', operation: 'read', username: 'user', expiration: '1' } as const;
    const signatures = new Set([
      signFileRequest(base, TOKEN),
      signFileRequest({ ...base, path: './a' }, TOKEN),
      signFileRequest({ ...base, operation: 'write' }, TOKEN),
      signFileRequest({ ...base, username: '' }, TOKEN),
      signFileRequest({ ...base, expiration: '2' }, TOKEN),
      signFileRequest({ ...base, expiration: undefined }, TOKEN),
      signFileRequest(base, `${TOKEN}x`),
    ]);
    expect(signatures.size).toBe(7);
  });
});
