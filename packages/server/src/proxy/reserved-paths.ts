/** Paths of port 49983 that the platform keeps to itself (contract e2b.md section 7). */
const RESERVED = new Set(['init', 'freeze', 'unfreeze', 'collapse', 'fsfreeze', 'fsthaw', 'upgrade']);

/** Encodings within encodings that are looked through; whoever needs more is refused as well. */
const MAX_LAYERS = 8;

/**
 * Whether anything that reads paths could take this one for a path of the platform: through percent-encoding of any
 * depth, backslashes, repeated slashes, dot segments, path parameters or letters of the other case.
 */
export function isReservedPath(url: string): boolean {
  const plain = decodeFully(url.split(/[?#]/, 1)[0] ?? '');
  if (plain === undefined) return true;
  const segments: string[] = [];
  for (const part of plain.replaceAll('\\', '/').split('/')) {
    // Some servers cut `;parameters` off, and what stands behind a NUL is not seen by programs in C.
    const segment = (part.split(/[;?#\0]/, 1)[0] ?? '').trim().toLowerCase();
    if (segment === '..') segments.pop();
    else if (segment !== '' && segment !== '.') segments.push(segment);
  }
  return segments.length === 1 && RESERVED.has(segments[0] ?? '');
}

/** Text without any percent-encoding left in it; undefined when there is no end to it. */
function decodeFully(text: string): string | undefined {
  let plain = text;
  for (let layer = 0; layer <= MAX_LAYERS; layer++) {
    const next = plain.replace(/%([0-9a-f]{2})/gi, (_match, digits: string) =>
      String.fromCharCode(Number.parseInt(digits, 16)),
    );
    if (next === plain) return plain;
    plain = next;
  }
  return undefined;
}
