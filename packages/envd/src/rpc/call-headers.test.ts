import { describe, expect, test } from 'vitest';
import { basicUser, connectTimeoutMs, keepaliveMs } from './call-headers.ts';

describe('headers of a call', () => {
  test.each([
    ['Basic cm9vdDo=', 'root'],
    ['basic dXNlcjpwYXNz', 'user'],
    ['Basic cm9vdA', 'root'],
    ['Bearer abc', undefined],
    ['Basic', undefined],
    ['Basic %%%', undefined],
    [undefined, undefined],
  ])('authorization %j names %j', (header, user) => {
    expect(basicUser(header)).toBe(user);
  });

  test.each([
    ['50', 50_000],
    ['1', 1_000],
    ['999999', 3_600_000],
    ['0', 90_000],
    ['-5', 90_000],
    ['soon', 90_000],
    [undefined, 90_000],
  ])('keepalive-ping-interval %j is %i ms', (value, expected) => {
    expect(keepaliveMs(value === undefined ? {} : { 'keepalive-ping-interval': value })).toBe(expected);
  });

  test.each([
    ['60000', 60_000],
    ['0', 0],
    ['9999999999', 9_999_999_999],
    ['12345678901', undefined],
    ['1s', undefined],
    [undefined, undefined],
  ])('connect-timeout-ms %j is %j', (value, expected) => {
    expect(connectTimeoutMs(value === undefined ? {} : { 'connect-timeout-ms': value })).toBe(expected);
  });
});
