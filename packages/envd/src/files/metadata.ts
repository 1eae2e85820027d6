import type { IncomingHttpHeaders } from 'node:http';
import { PlatformError } from '@agentenv/core';

const PREFIX = 'x-metadata-';
/** What is left of an attribute name's 255 bytes behind `user.e2b.`. */
const MAX_KEY_BYTES = 246;
/** Keys and values of one file together, bytes. */
const MAX_TOTAL_BYTES = 4096;
const PRINTABLE = /^[\x20-\x7e]*$/;

/** The metadata a request's `X-Metadata-*` headers give its files, keys in lower case (contract e2b.md section 8.4). */
export function readMetadata(headers: IncomingHttpHeaders): ReadonlyMap<string, string> {
  const metadata = new Map<string, string>();
  let total = 0;
  for (const [name, value] of Object.entries(headers)) {
    if (!name.startsWith(PREFIX) || typeof value !== 'string') continue;
    const key = name.slice(PREFIX.length);
    if (key === '') throw new PlatformError('invalid_argument', 'metadata: a key is empty');
    if (key.length > MAX_KEY_BYTES) {
      throw new PlatformError('invalid_argument', `metadata: key '${key}' is longer than ${MAX_KEY_BYTES} bytes`);
    }
    if (!PRINTABLE.test(value)) {
      throw new PlatformError('invalid_argument', `metadata: the value of '${key}' is not printable ASCII`);
    }
    total += key.length + value.length;
    if (total > MAX_TOTAL_BYTES) {
      throw new PlatformError('invalid_argument', `metadata is larger than ${MAX_TOTAL_BYTES} bytes`);
    }
    metadata.set(key, value);
  }
  return metadata;
}

/** The same as the attributes the guest stores. */
export function toXattrs(metadata: ReadonlyMap<string, string>): ReadonlyMap<string, Uint8Array> {
  return new Map([...metadata].map(([key, value]) => [key, Buffer.from(value, 'latin1')]));
}

/** As a JSON object, or undefined when there is nothing: the key must then be absent from an answer. */
export function toMetadataObject(metadata: ReadonlyMap<string, string>): Record<string, string> | undefined {
  return metadata.size === 0 ? undefined : Object.fromEntries(metadata);
}
