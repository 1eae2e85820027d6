import { expect, test } from 'vitest';
import { shorten } from './text.ts';

test('text is shortened when it is longer than the limit, and says so', () => {
  expect(shorten('', 3)).toBe('');
  expect(shorten('abc', 3)).toBe('abc');
  expect(shorten('abcd', 3)).toBe('abc…');
});
