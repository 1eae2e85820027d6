import { describe, expect, test } from 'vitest';
import { parseTemplateReference, TEMPLATE_NAME_MAX } from './index.ts';
import { parseSnapshotName, snapshotId, snapshotNames } from './snapshot.ts';
import { snapshotRecord } from './testing/index.ts';

const RECORD = snapshotRecord({ tags: ['v1', 'default', 'v2'] });

describe('the name of a snapshot', () => {
  test.each([
    ['data', 'data', 'default'],
    [' My_Data-1 ', 'my_data-1', 'default'],
    ['data:v1.2', 'data', 'v1.2'],
    ['team/data', 'data', 'default'],
    ['Team/data:default', 'data', 'default'],
  ])('%j is %s with the tag %s', (text, name, tag) => {
    expect(parseSnapshotName(text, 'team')).toEqual({ name, tag });
  });

  test.each([
    ['', 'it is empty'],
    ['a b', 'the name may hold only'],
    ['../data', 'may hold only'],
    ['data:', 'the tag may hold only'],
    ['data:a:b', 'the tag may hold only'],
    ['other/data', "the namespace of this server is 'team'"],
    ['i0123456789abcdefghij', 'it could be taken for an id'],
    ['019b76da-a800-7000-8000-00000000000b', 'it could be taken for an id'],
    ['data:019b76da-a800-7000-8000-00000000000b', 'the tag may not be a UUID'],
    ['x'.repeat(TEMPLATE_NAME_MAX), 'longer than 128 characters with its namespace and tag'],
  ])('%j is refused: %s', (text, why) => {
    expect(() => parseSnapshotName(text, 'team')).toThrow(
      expect.objectContaining({ code: 'invalid_argument', message: expect.stringMatching(/^invalid name '/) }),
    );
    expect(() => parseSnapshotName(text, 'team')).toThrow(why);
  });

  test('the longest one is a reference that can be used', () => {
    const name = 'x'.repeat(TEMPLATE_NAME_MAX - 'team/:default'.length);
    const { name: parsed } = parseSnapshotName(name, 'team');
    const id = snapshotId({ ...RECORD, name: parsed, tags: ['default'] }, 'team');
    expect(id).toHaveLength(TEMPLATE_NAME_MAX);
    expect(parseTemplateReference(id)).toEqual({ namespace: 'team', alias: name, tag: 'default' });
  });
});

describe('a snapshot is called', () => {
  test.each([
    ['by its names, the default one first', {}, ['team/data:default', 'team/data:v1', 'team/data:v2']],
    ['by another tag when a newer one is the default', { tags: ['v1'] }, ['team/data:v1']],
  ])('%s', (_case, changes, names) => {
    expect(snapshotNames({ ...RECORD, ...changes }, 'team')).toEqual(names);
    expect(snapshotId({ ...RECORD, ...changes }, 'team')).toBe(names[0]);
  });

  test('by its template without a name, and by its build when its name means another', () => {
    const unnamed = { ...RECORD, name: undefined, tags: ['default'] };
    expect(snapshotNames(unnamed, 'team')).toEqual([]);
    expect(snapshotId(unnamed, 'team')).toBe('i0000000000000000snap:default');
    expect(snapshotId({ ...RECORD, tags: [] }, 'team')).toBe('019b76da-a800-7000-8000-0000000000bb:default');
  });
});
