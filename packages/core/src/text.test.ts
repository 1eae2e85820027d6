import { expect, test } from 'vitest';
import { decodeUtf8, isWholeText, shorten } from './text.ts';

test('text is shortened when it is longer than the limit, and says so', () => {
  expect(shorten('', 3)).toBe('');
  expect(shorten('abc', 3)).toBe('abc');
  expect(shorten('abcd', 3)).toBe('abc…');
});

test('UTF-8 is decoded as it is, or refused', () => {
  expect(decodeUtf8(Buffer.from('\uFEFFä😀'), 'it')).toBe('\uFEFFä😀');
  for (const bytes of [[0xff], [0xc3], [0xed, 0xa0, 0x80], [0xc0, 0x80]]) {
    expect(() => decodeUtf8(Uint8Array.from(bytes), 'the body')).toThrow('the body is not valid UTF-8');
  }
});

test('a value of JSON is whole when no string or name in it has half a character', () => {
  expect(isWholeText({ a: ['ä', { '😀': null }, 1, true], b: '\ud83d\ude00' })).toBe(true);
  for (const value of ['\ud800', ['a', '\udfff'], { a: { '\ud800': 1 } }, { a: [{ b: 'x\ud83d' }] }]) {
    expect(isWholeText(value)).toBe(false);
  }
  expect(isWholeText(JSON.parse('['.repeat(500_000) + ']'.repeat(500_000)))).toBe(true);
});
