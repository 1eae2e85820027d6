import { describe, expect, it } from 'vitest';
import { isMaskRequestHost, maskedHost } from './request-host.ts';

// biome-ignore-start lint/suspicious/noTemplateCurlyInString: this is what clients write
describe('maskRequestHost', () => {
  it.each(['localhost', 'localhost:${PORT}', 'app-${PORT}.test', 'a_b.test:8080', '127.0.0.1', '[::1]:${PORT}'])(
    'may be %s',
    (text) => {
      expect(isMaskRequestHost(text)).toBe(true);
    },
  );

  it.each([
    '',
    ' ',
    'a b',
    'müller.test',
    'a\r\nx: y',
    'a/b',
    'user@host',
    'host:port',
    '${HOST}',
    '${PORT',
    'a'.repeat(256),
  ])('may not be %j', (text) => {
    expect(isMaskRequestHost(text)).toBe(false);
  });

  it('has the port wherever its place is', () => {
    expect(maskedHost('x-${PORT}.test:${PORT}', 80)).toBe('x-80.test:80');
  });
});
// biome-ignore-end lint/suspicious/noTemplateCurlyInString: this is what clients write
