import { describe, expect, test } from 'vitest';
import { describeEnd } from './process-end.ts';

function end(code: number, signal: number, reason: 'ended' | 'deadline' = 'ended') {
  return describeEnd({ code, signal, reason, stdoutTotal: 0n, stderrTotal: 0n });
}

describe('end of a process', () => {
  test('success has no error', () => {
    expect(end(0, 0)).toEqual({
      exitCode: 0,
      exited: true,
      status: 'exit status 0',
      error: undefined,
      byDeadline: false,
    });
  });

  test('failure repeats the status as error', () => {
    expect(end(137, 0)).toMatchObject({
      exitCode: 137,
      exited: true,
      status: 'exit status 137',
      error: 'exit status 137',
    });
  });

  test.each([
    [9, 'signal: killed'],
    [15, 'signal: terminated'],
    [11, 'signal: segmentation fault'],
    [34, 'signal: 34'],
  ])('signal %i is exit code -1 and %j', (signal, status) => {
    expect(end(0, signal)).toMatchObject({ exitCode: -1, exited: false, status, error: status });
  });

  test('tells that the time limit ended it', () => {
    expect(end(0, 9, 'deadline').byDeadline).toBe(true);
  });
});
