import { PlatformError } from '@agentenv/core';
import { createRecordingLog } from '@agentenv/core/testing';
import { describe, expect, it } from 'vitest';
import { logError } from './errors.ts';

describe('what is logged of an error', () => {
  it.each([
    new PlatformError('invalid_argument', 'timeout must be greater than 0'),
    new PlatformError('capacity', 'no capacity on this host', { retryAfterSeconds: 5 }),
    new PlatformError('not_implemented', 'not implemented: GET /volumes'),
    new PlatformError('unavailable', 'the server is starting', { retryAfterSeconds: 1 }),
    // The orchestrator has logged it, with its sandbox and stage.
    new PlatformError('create_failed', 'the sandbox could not be started', { cause: new Error('no engine') }),
  ])('a refusal and what was logged before are no news: $message', (error) => {
    const log = createRecordingLog();
    logError(log, error, { route: '/route' });
    expect(log.lines).toMatchObject([
      { level: 'debug', message: error.message, fields: { route: '/route', code: error.code } },
    ]);
    expect(log.lines[0]?.fields).not.toHaveProperty('err');
  });

  it('a fault of ours is an error with its cause', () => {
    const log = createRecordingLog();
    const cause = new Error('the disk is on fire');
    logError(log, new PlatformError('internal', 'internal error', { cause }), { route: '/route' });
    logError(log, new PlatformError('unavailable', 'the ledger has stopped'), { route: '/route' });
    expect(log.lines).toMatchObject([
      { level: 'error', fields: { err: cause, status: 500 } },
      { level: 'error', fields: { err: { code: 'unavailable' } } },
    ]);
  });
});
