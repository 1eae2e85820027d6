import type { IncomingMessage, ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGzip, constants as zlib } from 'node:zlib';
import type { GuestEntry } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';
import { parseAcceptEncoding } from '../http/accept-encoding.ts';
import { sendJson } from '../http/answer.ts';
import { contentDisposition } from '../http/content-disposition.ts';
import { isCompressible, mediaTypeOf } from '../http/media-type.ts';
import { signalOfAnswer, withDeadline } from '../http/signals.ts';
import { writeChunk } from '../http/write.ts';
import { type Condition, evaluateConditions, isConditional, validatorsOf } from './conditions.ts';
import { boundedBody, type FileHead, readHead } from './file-body.ts';
import { fileFailure } from './file-failure.ts';
import { lookupFileUser } from './file-user.ts';
import { type FilesContext, GUEST_CALL_MS } from './files-context.ts';
import { resolveGuestPath } from './guest-path.ts';

/** What compression yields at once, bytes. */
const CHUNK_BYTES = 64 * 1024;

interface OpenFile {
  readonly path: string;
  readonly entry: GuestEntry;
  readonly content: FileHead;
}

type Range = Extract<Condition, { readonly kind: 'part' }>;

/** `GET` and `HEAD /files`: the bytes of one file, or a range of them (contract e2b.md section 8.3). */
export async function downloadFile(
  request: IncomingMessage,
  response: ServerResponse,
  query: URLSearchParams,
  context: FilesContext,
): Promise<void> {
  const signal = signalOfAnswer(response);
  const path = await findPath(query, context, signal);
  const { entry, body } = await openFile(path, undefined, context, signal);
  const condition: Condition = isConditional(request.headers)
    ? evaluateConditions(request.headers, entry.size, validatorsOf(entry))
    : { kind: 'whole' };

  switch (condition.kind) {
    case 'whole':
      await sendWhole(request, response, { path, entry, content: await headOf(path, entry, body) }, signal);
      return;
    case 'part': {
      await leave(body);
      const part = await openFile(path, condition, context, signal);
      await sendPart(request, response, { path, entry, content: await headOf(path, entry, part.body) }, condition);
      return;
    }
    case 'not modified':
      await leave(body);
      describe(response, path, entry);
      response.writeHead(304).end();
      return;
    case 'precondition failed':
      await leave(body);
      sendJson(response, 412, { code: 412, message: `path '${path}' does not meet the preconditions of the request` });
      return;
    case 'unsatisfiable':
      await leave(body);
      response.setHeader('Content-Range', `bytes */${entry.size}`);
      sendJson(response, 416, { code: 416, message: `the range is outside of the ${entry.size} bytes of '${path}'` });
  }
}

async function findPath(query: URLSearchParams, context: FilesContext, signal: AbortSignal): Promise<string> {
  const user = await withDeadline(context.clock, GUEST_CALL_MS, signal, (bounded) =>
    lookupFileUser(context.agent, query.get('username') ?? context.defaultUser, bounded),
  );
  return resolveGuestPath(query.get('path') ?? '', { home: user.home, defaultWorkdir: context.defaultWorkdir });
}

async function openFile(path: string, range: Range | undefined, { agent }: FilesContext, signal: AbortSignal) {
  const bytes = range === undefined ? undefined : { offset: range.first, length: range.last - range.first + 1n };
  return await agent.readFile(path, bytes, signal).catch((caught: unknown) => {
    throw readError(caught, path);
  });
}

/** The beginning of a file. That it can be opened does not say it can be read: files of procfs refuse it there. */
async function headOf(path: string, entry: GuestEntry, body: AsyncIterable<Uint8Array>): Promise<FileHead> {
  return await readHead(body).catch((caught: unknown) => {
    const error = PlatformError.fromUnknown(caught);
    const { status } = error.details;
    // A file of some size that fails is a fault of its disk; one without any is an interface of the kernel.
    if (status === 'INVALID' || (status === 'IO' && entry.size === 0n)) {
      throw new PlatformError('invalid_argument', `path '${path}' cannot be read`, { cause: error });
    }
    throw readError(error, path);
  });
}

async function leave(body: AsyncIterable<Uint8Array>): Promise<void> {
  await body[Symbol.asyncIterator]().return?.();
}

async function sendWhole(
  request: IncomingMessage,
  response: ServerResponse,
  { path, entry, content }: OpenFile,
  signal: AbortSignal,
): Promise<void> {
  const { head, ended, rest } = content;
  const encodings = parseAcceptEncoding(request.headers['accept-encoding']?.toString());
  const mediaType = mediaTypeOf(path, head);
  // Only what shrinks is compressed, unless the client takes nothing but gzip. An empty answer must say it is empty, and
  // who asks for ranges or by conditions goes by the bytes as they are.
  const shrinks = isCompressible(mediaType) && head.length > 0 && !isConditional(request.headers);
  const compress = encodings.gzip && (!encodings.identity || shrinks);
  if (!compress && !encodings.identity) {
    await rest.return?.();
    throw new PlatformError('not_acceptable', 'no acceptable encoding: this server sends identity and gzip');
  }
  describe(response, path, entry);
  response.setHeader('Content-Type', mediaType);
  const length = ended ? BigInt(head.length) : lengthOf(entry, head.length);
  if (compress) {
    response.removeHeader('ETag');
    response.setHeader('Content-Encoding', 'gzip');
  } else if (length !== undefined) {
    response.setHeader('Content-Length', String(length));
  }
  response.statusCode = 200;
  if (request.method === 'HEAD') {
    await rest.return?.();
    response.end();
    return;
  }
  const body = boundedBody(content, compress ? undefined : length);
  if (compress) {
    const gzip = createGzip({ level: zlib.Z_BEST_SPEED, chunkSize: CHUNK_BYTES });
    await pipeline(Readable.from(body, { objectMode: false }), gzip, response, { signal });
  } else {
    await sendBody(response, body);
  }
}

async function sendPart(
  request: IncomingMessage,
  response: ServerResponse,
  { path, entry, content }: OpenFile,
  { first, last }: Range,
): Promise<void> {
  const length = last - first + 1n;
  describe(response, path, entry);
  response.setHeader('Content-Type', mediaTypeOf(path, content.head));
  response.setHeader('Content-Range', `bytes ${first}-${last}/${entry.size}`);
  response.setHeader('Content-Length', String(length));
  response.statusCode = 206;
  if (request.method === 'HEAD') {
    await content.rest.return?.();
    response.end();
    return;
  }
  await sendBody(response, boundedBody(content, length));
}

async function sendBody(response: ServerResponse, body: AsyncIterable<Uint8Array>): Promise<void> {
  for await (const chunk of body) {
    await writeChunk(response, chunk);
    if (response.destroyed) return;
  }
  response.end();
}

/** The headers every answer about a file has. */
function describe(response: ServerResponse, path: string, entry: GuestEntry): void {
  const { etag, modifiedS } = validatorsOf(entry);
  response.appendHeader('Vary', 'Accept-Encoding');
  response.setHeader('Accept-Ranges', 'bytes');
  response.setHeader('Content-Disposition', contentDisposition(path));
  response.setHeader('ETag', etag);
  response.setHeader('Last-Modified', new Date(modifiedS * 1000).toUTCString());
}

/** The length stat gives, unless what was read proves it wrong, as for the files of procfs. */
function lengthOf(entry: GuestEntry, seen: number): bigint | undefined {
  return entry.size >= seen ? entry.size : undefined;
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
      return fileFailure(error);
  }
}
