import { describe, expect, test } from 'vitest';
import { readMetadata, toMetadataObject, toXattrs } from './metadata.ts';

const refuse = expect.objectContaining({ code: 'invalid_argument' });

describe('file metadata', () => {
  test('takes the headers with the prefix and nothing else', () => {
    const metadata = readMetadata({ 'x-metadata-author': 'Jo', 'x-metadata-a-b': '', 'x-other': '1', host: 'h' });
    expect(toMetadataObject(metadata)).toEqual({ author: 'Jo', 'a-b': '' });
    expect(toXattrs(metadata).get('author')).toEqual(Buffer.from('Jo'));
  });

  test('no headers are no object, so that the key is absent from answers', () => {
    expect(toMetadataObject(readMetadata({}))).toBeUndefined();
  });

  test('the limits hold to the byte', () => {
    const key = 'k'.repeat(246);
    expect(readMetadata({ [`x-metadata-${key}`]: 'v'.repeat(4096 - 246) }).size).toBe(1);
    expect(() => readMetadata({ [`x-metadata-${key}`]: 'v'.repeat(4097 - 246) })).toThrow(refuse);
    expect(() => readMetadata({ [`x-metadata-${key}k`]: 'v' })).toThrow(refuse);
  });

  test('refuses an empty key and what is not printable ASCII', () => {
    expect(() => readMetadata({ 'x-metadata-': 'v' })).toThrow(refuse);
    expect(() => readMetadata({ 'x-metadata-k': 'tab\there' })).toThrow(refuse);
    expect(() => readMetadata({ 'x-metadata-k': 'é' })).toThrow(refuse);
  });
});
