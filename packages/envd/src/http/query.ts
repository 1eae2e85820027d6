import { isUtf8 } from 'node:buffer';
import { PlatformError } from '@agentenv/core';

/**
 * The parameters of a query as Node gives it, a character per byte. What is not escaped is UTF-8 as well; what is none
 * throws `invalid_argument`, as with a U+FFFD in its place it would name something else.
 */
export function parseQuery(query: string): URLSearchParams {
  const escaped = query.replaceAll(/[\x80-\xff]/g, (byte) => `%${byte.charCodeAt(0).toString(16)}`);
  // A character is escaped as a whole or not at all, so it never goes beyond a run of escapes.
  for (const [run] of escaped.matchAll(/(?:%[0-9a-f]{2})+/gi)) {
    if (!isUtf8(Buffer.from(run.replaceAll('%', ''), 'hex'))) {
      throw new PlatformError('invalid_argument', 'a query parameter is not valid UTF-8');
    }
  }
  return new URLSearchParams(escaped);
}
