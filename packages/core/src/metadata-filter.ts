import { PlatformError } from './errors.ts';

/** One form decoding: `+` is a space, then percent sequences. Malformed text is `invalid_argument`. */
function formDecode(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch (error) {
    throw new PlatformError('invalid_argument', 'metadata: malformed percent-encoding', { cause: error });
  }
}

/**
 * Parses the `metadata` query value of a list (contract e2b.md 6.2). SDKs encode it three times on the wire; `value` is
 * what is left after ordinary query decoding, so two decodings follow: one of the whole, one of every key and value.
 * Pairs with an empty key are dropped; absent or empty means no filter.
 */
export function parseMetadataFilter(value: string | undefined): ReadonlyMap<string, string> {
  const filter = new Map<string, string>();
  if (value === undefined || value === '') return filter;
  for (const pair of formDecode(value).split('&')) {
    const equals = pair.indexOf('=');
    const key = formDecode(equals === -1 ? pair : pair.slice(0, equals));
    if (key !== '') filter.set(key, equals === -1 ? '' : formDecode(pair.slice(equals + 1)));
  }
  return filter;
}

/** True when every pair of the filter is present with exactly that value. */
export function matchesMetadata(
  metadata: Readonly<Record<string, string>>,
  filter: ReadonlyMap<string, string>,
): boolean {
  for (const [key, value] of filter) {
    if (!Object.hasOwn(metadata, key) || metadata[key] !== value) return false;
  }
  return true;
}
