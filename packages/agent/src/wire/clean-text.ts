/** Longest text of a guest that is shown or logged, characters. */
const MAX_TEXT = 512;

/** Makes text that came from a guest safe for messages and logs: control characters become U+FFFD, length is bounded. */
export function cleanText(text: string): string {
  const bounded = text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT - 1)}…` : text;
  return bounded.toWellFormed().replace(/[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu, '\uFFFD');
}
