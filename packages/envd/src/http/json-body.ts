import type { Readable } from 'node:stream';
import { decodeUtf8, PlatformError } from '@agentenv/core';
import { type RequestBodyOptions, readRequestBody } from './request-body.ts';

/** Largest JSON body of a plain HTTP route, bytes. */
const MAX_BYTES = 1024 * 1024;

/** The JSON object a request carries; `invalid_argument` for anything else, `payload_too_large` beyond 1 MiB. */
export async function readJsonObject(
  request: Readable,
  options: RequestBodyOptions,
): Promise<Readonly<Record<string, unknown>>> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of readRequestBody(request, options)) {
    bytes += chunk.length;
    if (bytes > MAX_BYTES) throw new PlatformError('payload_too_large', `the body is larger than ${MAX_BYTES} bytes`);
    chunks.push(chunk);
  }
  const value = parse(decodeUtf8(Buffer.concat(chunks), 'the body'));
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new PlatformError('invalid_argument', 'the body must be a JSON object');
  }
  return value as Readonly<Record<string, unknown>>;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (caught) {
    throw new PlatformError('invalid_argument', 'the body is not valid JSON', { cause: caught });
  }
}
