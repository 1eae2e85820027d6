import { describe, expect, test } from 'vitest';
import { PlatformError } from './errors.ts';
import { parseTemplateReference } from './template-reference.ts';

describe('template references', () => {
  test.each([
    ['base', { namespace: undefined, alias: 'base', tag: undefined }],
    ['base:default', { namespace: undefined, alias: 'base', tag: 'default' }],
    ['default/base', { namespace: 'default', alias: 'base', tag: undefined }],
    ['my-team/my_alias:v1.2-rc', { namespace: 'my-team', alias: 'my_alias', tag: 'v1.2-rc' }],
    ['  Base:Default ', { namespace: undefined, alias: 'base', tag: 'default' }],
    ['i0123456789abcdefghij', { namespace: undefined, alias: 'i0123456789abcdefghij', tag: undefined }],
  ])('%j is taken apart', (text, expected) => {
    expect(parseTemplateReference(text)).toEqual(expected);
  });

  test.each([
    '',
    '   ',
    ':',
    'base:',
    ':default',
    '/base',
    'a/b/c',
    'base:a:b',
    'base image',
    'bäse',
    '../etc/passwd',
    'base:ta/g',
    'base:0198f000-0000-7000-8000-000000000000',
    'a'.repeat(129),
  ])('%j is refused as malformed and named', (text) => {
    expect.assertions(3);
    try {
      parseTemplateReference(text);
    } catch (error) {
      expect(error).toBeInstanceOf(PlatformError);
      expect((error as PlatformError).code).toBe('invalid_argument');
      expect((error as PlatformError).message).toContain('invalid template reference');
    }
  });
});
