import { PlatformError } from '@agentenv/core';
import { describe, expect, test } from 'vitest';
import { toShownFailure } from '../orchestrator/launch-failure.ts';
import { answerToCaller, findHookFailure, type HookedOperation, hookFailure } from './failure.ts';

const rejected = hookFailure('rejected', 'rejected with 422: no', { hook: 'start-resume', status: 422 });
const failed = hookFailure('server-error', 'failed with 503', { hook: 'start-resume', status: 503 });
const lost = hookFailure('transport', 'no answer', { hook: 'start-resume' });

const WRAPPINGS: readonly (readonly [string, (error: unknown) => unknown])[] = [
  ['as it is', (error) => error],
  [
    'as the cause of a cause',
    (cause) => new Error('outer', { cause: new PlatformError('internal', 'inner', { cause }) }),
  ],
  ['suppressed by a failing release', (error) => new SuppressedError(new Error('release failed'), error)],
  ['among others', (error) => new AggregateError([new Error('another'), error])],
];

describe('failures of the custom extension', () => {
  test.each(WRAPPINGS)('hooks/56 the class survives %s', (_, wrap) => {
    for (const failure of [rejected, failed, lost]) {
      expect(findHookFailure(wrap(failure))).toBe(failure);
      expect(toShownFailure(wrap(failure), 'create_failed', 'it failed')).toBe(failure);
    }
  });

  test('an error that has nothing to do with it stays as it is, a circular one too', () => {
    const circular = new Error('circular');
    circular.cause = circular;
    for (const error of [circular, 'text', undefined]) {
      expect(findHookFailure(error)).toBeUndefined();
      expect(answerToCaller('create', error)).toBe(error);
    }
  });

  test.each<[HookedOperation, number]>([
    ['create', 400],
    ['connect', 400],
    ['resume', 409],
    ['fork', 400],
    ['patch', 400],
    ['auto-resume', 400],
  ])('to the caller of %s a rejection is %i, everything else 500; the message stays', (operation, status) => {
    const statusOf = (error: unknown) => (answerToCaller(operation, error) as PlatformError).mapping.http;
    expect(statusOf(new Error('outer', { cause: rejected }))).toBe(status);
    expect((answerToCaller(operation, rejected) as PlatformError).message).toBe(rejected.message);
    expect(statusOf(failed)).toBe(500);
    expect(statusOf(lost)).toBe(500);
  });
});
