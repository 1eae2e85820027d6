import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { matchesMetadata, parseMetadataFilter } from './metadata-filter.ts';

/** What the SDKs do before the query serialiser: every key and value, then a form (e2b.md 6.2). */
function encodeLikeClient(metadata: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(metadata).map(([key, value]) => [encodeURIComponent(key), encodeURIComponent(value)]);
  return new URLSearchParams(pairs).toString();
}

describe('metadata filter', () => {
  test('the recorded request is decoded', () => {
    const onTheWire = 'metadata=k%2525201%3Dv%252526%25253D1%26b%3Dc';
    const value = new URLSearchParams(onTheWire).get('metadata') ?? '';
    expect([...parseMetadataFilter(value)]).toEqual([
      ['k 1', 'v&=1'],
      ['b', 'c'],
    ]);
  });

  test('whatever a client encodes comes back', () => {
    const text = fc.string({ unit: 'binary', maxLength: 12 }).filter((value) => value.isWellFormed());
    fc.assert(
      fc.property(
        fc.dictionary(
          text.filter((key) => key !== ''),
          text,
        ),
        (metadata) => {
          const afterQuery = new URLSearchParams(`m=${encodeURIComponent(encodeLikeClient(metadata))}`).get('m') ?? '';
          expect(Object.fromEntries(parseMetadataFilter(afterQuery))).toEqual({ ...metadata });
        },
      ),
    );
  });

  test.each([
    [undefined, []],
    ['', []],
    ['app=a', [['app', 'a']]],
    [
      'app=a&team=b',
      [
        ['app', 'a'],
        ['team', 'b'],
      ],
    ],
    ['=dropped&app=a', [['app', 'a']]],
    ['flag', [['flag', '']]],
    ['a=b=c', [['a', 'b=c']]],
    ['a=x+y', [['a', 'x y']]],
  ])('%j', (value, expected) => {
    expect([...parseMetadataFilter(value)]).toEqual(expected);
  });

  test.each(['a=%', 'a=%zz', 'a=%2525zz%25'])('malformed %j is refused', (value) => {
    expect(() => parseMetadataFilter(value)).toThrow('metadata: malformed percent-encoding');
  });

  test('all pairs must match exactly and inherited names never do', () => {
    expect(matchesMetadata({ a: '1', b: '2' }, new Map([['a', '1']]))).toBe(true);
    expect(
      matchesMetadata(
        { a: '1', b: '2' },
        new Map([
          ['a', '1'],
          ['b', 'x'],
        ]),
      ),
    ).toBe(false);
    expect(matchesMetadata({}, new Map([['toString', '']]))).toBe(false);
    expect(matchesMetadata({ a: '1' }, new Map())).toBe(true);
  });
});
