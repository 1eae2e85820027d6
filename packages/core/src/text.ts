import { PlatformError } from './errors.ts';

/** Text for a message or a log: `text` itself, or its first `limit` characters and an ellipsis. */
export function shorten(text: string, limit: number): string {
  return text.length <= limit ? text : `${text.slice(0, limit)}…`;
}

/** The text of bytes from outside, a leading U+FEFF included; `invalid_argument`, naming `what`, when they are no UTF-8. */
export function decodeUtf8(bytes: Uint8Array, what: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (caught) {
    throw new PlatformError('invalid_argument', `${what} is not valid UTF-8`, { cause: caught });
  }
}

/** Whether every string and name of a parsed JSON value can be written as UTF-8: JSON can escape half a character. */
export function isWholeText(value: unknown): boolean {
  // No recursion: how deep it goes is the sender's choice.
  const left: unknown[] = [value];
  while (left.length > 0) {
    const item = left.pop();
    if (typeof item === 'string' && !item.isWellFormed()) return false;
    if (typeof item !== 'object' || item === null) continue;
    for (const [name, inner] of Object.entries(item)) {
      if (!name.isWellFormed()) return false;
      left.push(inner);
    }
  }
  return true;
}
