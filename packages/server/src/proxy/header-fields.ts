/** Headers of one connection, which a proxy makes anew for the next (RFC 9110 section 7.6.1). */
export const HOP_BY_HOP: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
]);

/** Not for `Connection` to remove: without them a message means something else. */
const NEVER_NOMINATED: ReadonlySet<string> = new Set(['host', 'content-length', 'trailer']);

/** Lower-case names that `Connection` declares to be of this connection only. */
export function nominatedBy(connection: string | undefined): ReadonlySet<string> {
  const names = (connection ?? '').split(',').map((name) => name.trim().toLowerCase());
  return new Set(names.filter((name) => name !== '' && !NEVER_NOMINATED.has(name)));
}

/** Calls `visit` for every header of a raw list of names and values; HTTP/2's pseudo headers are none. */
export function forEachHeader(
  raw: readonly string[],
  visit: (name: string, value: string, lowerCaseName: string) => void,
): void {
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] ?? '';
    if (!name.startsWith(':')) visit(name, raw[index + 1] ?? '', name.toLowerCase());
  }
}

/** Removes every header of that lower-case name from a raw list. */
export function removeHeader(raw: string[], lowerCaseName: string): void {
  for (let index = raw.length - 2; index >= 0; index -= 2) {
    if (raw[index]?.toLowerCase() === lowerCaseName) raw.splice(index, 2);
  }
}

/** Fields that frame or route a message and have no business behind its body (RFC 9110 section 6.5.1). */
const NO_TRAILERS: ReadonlySet<string> = new Set([...HOP_BY_HOP, 'content-length', 'host', 'trailer', 'authorization']);

/** Fields behind a body, or of an interim answer, by name; those are left out that would change the message. */
export function trailersOf(raw: readonly string[]): Record<string, string[]> {
  const trailers: Record<string, string[]> = {};
  forEachHeader(raw, (name, value, lower) => {
    if (!NO_TRAILERS.has(lower)) trailers[name] = [...(trailers[name] ?? []), value];
  });
  return trailers;
}
