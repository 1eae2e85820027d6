import { PlatformError } from '@agentenv/core';
import { describe, expect, it } from 'vitest';
import { STATUS } from '../generated/protocol.ts';
import { errorOfAbort, errorOfReset, errorOfStatus } from './status.ts';

describe('guest status', () => {
  it('every status but OK becomes an error that names it', () => {
    for (const [name, code] of Object.entries(STATUS)) {
      if (name === 'OK') continue;
      const error = errorOfStatus(code, 2, '');
      expect(error.details).toEqual({ status: name, errno: 2 });
      expect(error.message).not.toBe('');
    }
  });

  it.each([
    ['NOT_FOUND', 'not_found'],
    ['EXISTS', 'already_exists'],
    ['NO_SPACE', 'no_space'],
    ['NOT_DIRECTORY', 'invalid_argument'],
    ['UNKNOWN_USER', 'invalid_argument'],
    ['DEADLINE', 'deadline_exceeded'],
    ['CANCELED', 'canceled'],
    ['REFUSED', 'unavailable'],
    ['LIMIT', 'capacity'],
    ['PERMISSION', 'permission_denied'],
  ] as const)('%s becomes %s', (status, code) => {
    expect(errorOfStatus(STATUS[status], 0, '').code).toBe(code);
  });

  it('a status nobody knows is internal', () => {
    expect(errorOfStatus(9999, 0, 'x')).toMatchObject({ code: 'internal', details: { status: 9999 } });
  });

  it("the guest's message is shown without control characters and bounded", () => {
    const { message } = errorOfStatus(STATUS.NOT_FOUND, 2, `no\x1b[31m\n${'a'.repeat(5000)}`);
    expect(message).toMatch(/^no\uFFFD\[31m\uFFFDaaa/);
    expect(message.length).toBe(512);
  });

  it('a RESET without a code counts as canceled', () => {
    expect(errorOfReset(0).code).toBe('canceled');
    expect(errorOfReset(STATUS.IO).details).toMatchObject({ status: 'IO' });
  });
});

describe('errorOfAbort', () => {
  it('keeps one of our own errors, and tells deadlines from cancellations', () => {
    const own = new PlatformError('killed', 'killed');
    expect(errorOfAbort(AbortSignal.abort(own))).toBe(own);
    expect(errorOfAbort(AbortSignal.abort()).code).toBe('canceled');
    expect(errorOfAbort(AbortSignal.abort(new DOMException('late', 'TimeoutError'))).code).toBe('deadline_exceeded');
    expect(errorOfAbort(AbortSignal.abort('because')).code).toBe('canceled');
  });
});
