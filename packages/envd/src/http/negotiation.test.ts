import { describe, expect, test } from 'vitest';
import { parseAcceptEncoding } from './accept-encoding.ts';
import { contentDisposition } from './content-disposition.ts';
import { isCompressible, mediaTypeOf } from './media-type.ts';

describe('accept-encoding', () => {
  test.each([
    [undefined, { gzip: false, identity: true }],
    ['', { gzip: false, identity: true }],
    ['gzip, deflate', { gzip: true, identity: true }],
    ['GZIP;q=0.1', { gzip: true, identity: true }],
    ['gzip;q=0', { gzip: false, identity: true }],
    ['gzip;q=0.0, *', { gzip: false, identity: true }],
    ['*', { gzip: true, identity: true }],
    ['*;q=0', { gzip: false, identity: false }],
    ['gzip, identity;q=0', { gzip: true, identity: false }],
    ['br, identity;q=0', { gzip: false, identity: false }],
    ['identity;q=0.5, *;q=0', { gzip: false, identity: true }],
    ['gzip;q=nonsense', { gzip: false, identity: true }],
  ])('%j', (header, expected) => {
    expect(parseAcceptEncoding(header)).toEqual(expected);
  });
});

describe('content-disposition', () => {
  test.each([
    ['/home/user/a.txt', 'inline; filename="a.txt"'],
    ['/x/a "b"\\.txt', 'inline; filename="a \\"b\\"\\\\.txt"'],
    ['/x/naïve (1).txt', `inline; filename="na_ve (1).txt"; filename*=UTF-8''na%C3%AFve%20%281%29.txt`],
    ['/x/日本', `inline; filename="__"; filename*=UTF-8''%E6%97%A5%E6%9C%AC`],
    ['/x/a\nb', `inline; filename="a_b"; filename*=UTF-8''a%0Ab`],
  ])('%j', (path, expected) => {
    expect(contentDisposition(path)).toBe(expected);
  });
});

describe('media type', () => {
  test('the extension decides first, in any case', () => {
    expect(mediaTypeOf('/a/b.JSON', Buffer.from([0]))).toBe('application/json');
  });

  test('without a known extension the bytes decide', () => {
    expect(mediaTypeOf('/a/b', Buffer.from('text\n'))).toBe('text/plain; charset=utf-8');
    expect(mediaTypeOf('/a/b.unknown', Buffer.from([0x7f, 0x45, 0x4c, 0x46, 0]))).toBe('application/octet-stream');
  });

  test('text shrinks, archives and unknown bytes do not', () => {
    expect(isCompressible('text/csv; charset=utf-8')).toBe(true);
    expect(isCompressible('application/gzip')).toBe(false);
    expect(isCompressible('application/octet-stream')).toBe(false);
  });
});
