import { describe, expect, test } from 'vitest';
import { parseQuery } from './query.ts';

describe('a query', () => {
  test.each([
    ['', ''],
    ['path=%C3%A4', 'ä'],
    ['path=a%20b+c', 'a b c'],
    ['path=%F0%9F%98%80', '😀'],
    ['path=%EF%BF%BD', '\uFFFD'],
    ['path=100%', '100%'],
    ['path=%zz', '%zz'],
    // As Node gives bytes that were sent without escapes.
    [Buffer.from('path=ä%C3%A4', 'utf8').toString('latin1'), 'ää'],
  ])('%j names %j', (query, path) => {
    expect(parseQuery(query).get('path') ?? '').toBe(path);
  });

  test.each(['path=%FF', 'path=a%C3', 'path=%C3a%A4', 'path=%ED%A0%80', '%FF=a', 'path=\xff', 'a=1&path=%fe%ff'])(
    '%j is refused',
    (query) => {
      expect(() => parseQuery(query)).toThrow(expect.objectContaining({ code: 'invalid_argument' }));
    },
  );
});
