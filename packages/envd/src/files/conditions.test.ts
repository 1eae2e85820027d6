import { describe, expect, test } from 'vitest';
import { evaluateConditions, isConditional, type Validators } from './conditions.ts';

const validators: Validators = { etag: '"7-64-0"', modifiedS: 1_700_000_000 };
const AT = new Date(1_700_000_000_000).toUTCString();
const BEFORE = new Date(1_699_999_999_000).toUTCString();
const AFTER = new Date(1_700_000_001_000).toUTCString();
const WHOLE = { kind: 'whole' };
const part = (first: number, last: number) => ({ kind: 'part', first: BigInt(first), last: BigInt(last) });

function evaluate(headers: Record<string, string>, size = 100n) {
  return evaluateConditions(headers, size, validators);
}

describe('range of a file request', () => {
  test.each([
    ['bytes=0-0', part(0, 0)],
    ['bytes=10-19', part(10, 19)],
    ['bytes=90-', part(90, 99)],
    ['bytes=90-1000', part(90, 99)],
    ['bytes=-10', part(90, 99)],
    ['bytes=-1000', part(0, 99)],
    ['Bytes = 1 - 2', part(1, 2)],
    ['bytes=100-', { kind: 'unsatisfiable' }],
    ['bytes=-0', { kind: 'unsatisfiable' }],
    ['bytes=5-4', WHOLE],
    ['bytes=0-1,5-6', WHOLE],
    ['bytes=-', WHOLE],
    ['lines=1-2', WHOLE],
    ['bytes=1234567890123456789-', WHOLE],
  ])('%s', (range, expected) => {
    expect(evaluate({ range })).toEqual(expected);
  });

  test('a file that claims to be empty is read as a whole', () => {
    expect(evaluate({ range: 'bytes=0-' }, 0n)).toEqual(WHOLE);
  });

  test('counts only while if-range holds', () => {
    expect(evaluate({ range: 'bytes=0-1', 'if-range': '"7-64-0"' })).toEqual(part(0, 1));
    expect(evaluate({ range: 'bytes=0-1', 'if-range': 'W/"7-64-0"' })).toEqual(WHOLE);
    expect(evaluate({ range: 'bytes=0-1', 'if-range': AT })).toEqual(part(0, 1));
    expect(evaluate({ range: 'bytes=0-1', 'if-range': AFTER })).toEqual(WHOLE);
  });
});

describe('conditions of a file request', () => {
  test.each([
    [{ 'if-none-match': '"7-64-0"' }, 'not modified'],
    [{ 'if-none-match': '"x", W/"7-64-0"' }, 'not modified'],
    [{ 'if-none-match': '*' }, 'not modified'],
    [{ 'if-none-match': '"x"' }, 'whole'],
    [{ 'if-none-match': '"x"', 'if-modified-since': AFTER }, 'whole'],
    [{ 'if-modified-since': AT }, 'not modified'],
    [{ 'if-modified-since': BEFORE }, 'whole'],
    [{ 'if-modified-since': 'yesterday' }, 'whole'],
    [{ 'if-match': '"7-64-0"' }, 'whole'],
    [{ 'if-match': '*' }, 'whole'],
    [{ 'if-match': 'W/"7-64-0"' }, 'precondition failed'],
    [{ 'if-match': '"x"' }, 'precondition failed'],
    [{ 'if-unmodified-since': BEFORE }, 'precondition failed'],
    [{ 'if-unmodified-since': AT }, 'whole'],
    [{ 'if-match': '"7-64-0"', 'if-unmodified-since': BEFORE }, 'whole'],
    [{ 'if-match': '"x"', 'if-none-match': '"7-64-0"' }, 'precondition failed'],
  ])('%j is %s', (headers, kind) => {
    expect(evaluate(headers)).toMatchObject({ kind });
    expect(isConditional(headers)).toBe(true);
  });

  test('a plain request is not conditional', () => {
    expect(isConditional({ accept: '*/*', 'if-range': 'x' })).toBe(false);
  });
});
