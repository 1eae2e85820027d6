import type { IncomingMessage, ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGzip, constants as zlib } from 'node:zlib';
import type { GuestEntry } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';
import { parseAcceptEncoding } from '../http/accept-encoding.ts';
import { contentDisposition } from '../http/content-disposition.ts';
import { isCompressible, mediaTypeOf } from '../http/media-type.ts';
import { signalOfAnswer, withDeadline } from '../http/signals.ts';
import { lookupFileUser } from './file-user.ts';
import { type FilesContext, GUEST_CALL_MS } from './files-context.ts';
import { resolveGuestPath } from './guest-path.ts';

/** Read before the answer begins: a file that ends in it gets its true length, whatever stat says. Bytes. */
const HEAD_BYTES = 64 * 1024;

/** `GET` and `HEAD /files`: the bytes of one file (contract e2b.md section 8.3). */
export async function downloadFile(
  request: IncomingMessage,
  response: ServerResponse,
  query: URLSearchParams,
  context: FilesContext,
): Promise<void> {
  const { agent, clock } = context;
  const signal = signalOfAnswer(response);
  const user = await withDeadline(clock, GUEST_CALL_MS, signal, (bounded) =>
    lookupFileUser(agent, query.get('username') ?? context.defaultUser, bounded),
  );
  const path = resolveGuestPath(query.get('path') ?? '', { home: user.home, defaultWorkdir: context.defaultWorkdir });
  const encodings = parseAcceptEncoding(header(request, 'accept-encoding'));

  const file = await agent.readFile(path, undefined, signal).catch((caught: unknown) => {
    throw readError(caught, path);
  });
  const { head, ended, rest } = await readHead(file.body);
  const mediaType = mediaTypeOf(path, head);
  // Small or not, only what shrinks is compressed, unless the client takes nothing but gzip.
  const compress =
    encodings.gzip && (!encodings.identity || (isCompressible(mediaType) && (head.length > 0 || !ended)));
  if (!compress && !encodings.identity) {
    await rest.return?.();
    throw new PlatformError('not_acceptable', 'no acceptable encoding: this server sends identity and gzip');
  }

  response.statusCode = 200;
  response.appendHeader('Vary', 'Accept-Encoding');
  response.setHeader('Content-Type', mediaType);
  response.setHeader('Content-Disposition', contentDisposition(path));
  const length = ended ? BigInt(head.length) : lengthOf(file.entry, head.length);
  if (compress) response.setHeader('Content-Encoding', 'gzip');
  else if (length !== undefined) response.setHeader('Content-Length', String(length));

  if (request.method === 'HEAD') {
    await rest.return?.();
    response.end();
    return;
  }
  const limit = compress ? undefined : length;
  const body = Readable.from(boundedBody(head, rest, limit), { objectMode: false });
  if (compress) {
    await pipeline(body, createGzip({ level: zlib.Z_BEST_SPEED, chunkSize: HEAD_BYTES }), response, { signal });
  } else {
    await pipeline(body, response, { signal });
  }
}

/** The length stat gives, unless what was read proves it wrong, as for the files of procfs. */
function lengthOf(entry: GuestEntry, seen: number): bigint | undefined {
  return entry.size >= seen ? entry.size : undefined;
}

interface FileHead {
  readonly head: Uint8Array;
  /** The file ends with `head`. */
  readonly ended: boolean;
  readonly rest: AsyncIterator<Uint8Array>;
}

async function readHead(body: AsyncIterable<Uint8Array>): Promise<FileHead> {
  const rest = body[Symbol.asyncIterator]();
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  let ended = false;
  while (bytes < HEAD_BYTES && !ended) {
    const next = await rest.next();
    ended = next.done === true;
    if (next.done !== true) {
      chunks.push(next.value);
      bytes += next.value.length;
    }
  }
  return { head: chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks), ended, rest };
}

/** Head and rest, exactly `length` bytes where that is promised: a file that grows is cut, one that shrinks is an error. */
async function* boundedBody(
  head: Uint8Array,
  rest: AsyncIterator<Uint8Array>,
  length: bigint | undefined,
): AsyncGenerator<Uint8Array, void, undefined> {
  let left = length;
  let chunk: Uint8Array | undefined = head;
  try {
    while (chunk !== undefined) {
      if (left !== undefined) {
        chunk = chunk.subarray(0, Number(left < BigInt(chunk.length) ? left : BigInt(chunk.length)));
        left -= BigInt(chunk.length);
      }
      if (chunk.length > 0) yield chunk;
      if (left === 0n) return;
      const next: IteratorResult<Uint8Array> = await rest.next();
      chunk = next.done === true ? undefined : next.value;
    }
    if (left !== undefined) throw new PlatformError('internal', 'the file became shorter while it was read');
  } finally {
    await rest.return?.();
  }
}

function readError(caught: unknown, path: string): PlatformError {
  const error = PlatformError.fromUnknown(caught);
  switch (error.details.status) {
    case 'NOT_FOUND':
    case 'NOT_DIRECTORY':
      return new PlatformError('not_found', `path '${path}' does not exist`, { cause: error });
    case 'IS_DIRECTORY':
      return new PlatformError('invalid_argument', `path '${path}' is a directory`, { cause: error });
    case 'NOT_REGULAR':
      return new PlatformError('invalid_argument', `path '${path}' is not a regular file`, { cause: error });
    default:
      return error;
  }
}

function header(request: IncomingMessage, name: string): string | undefined {
  const value = request.headers[name];
  return Array.isArray(value) ? value.join(', ') : value;
}
