/** Text for a message or a log: `text` itself, or its first `limit` characters and an ellipsis. */
export function shorten(text: string, limit: number): string {
  return text.length <= limit ? text : `${text.slice(0, limit)}…`;
}
