import type { IncomingMessage, ServerResponse } from 'node:http';
import { basename, normalize } from 'node:path/posix';
import { pipeline, Readable } from 'node:stream';
import { createGunzip } from 'node:zlib';
import type { GuestUser } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';
import { sendJson } from '../http/answer.ts';
import { readRequestBody } from '../http/request-body.ts';
import { signalOfAnswer, withDeadline } from '../http/signals.ts';
import { lookupFileUser } from './file-user.ts';
import { type FilesContext, GUEST_CALL_MS } from './files-context.ts';
import { resolveGuestPath } from './guest-path.ts';
import { readMetadata, toMetadataObject, toXattrs } from './metadata.ts';
import { boundaryOf, readMultipart } from './multipart.ts';
import { writeError } from './write-error.ts';

/** Longest silence of a client in the middle of its body, milliseconds. */
const BODY_IDLE_MS = 60_000;
/** The umask takes the group's and the others' write bits away. */
const FILE_MODE = 0o666;
/** What decompression yields at once, bytes. */
const CHUNK_BYTES = 64 * 1024;
/** Name of the parts that are files. */
const FILE_PART = 'file';

/** One written file in the answer (contract e2b.md section 8.4). */
interface WrittenFile {
  readonly name: string;
  readonly path: string;
  readonly type: 'file';
  readonly metadata?: Record<string, string>;
}

interface Upload {
  readonly context: FilesContext;
  readonly user: GuestUser;
  /** The `path` query, which wins over the filenames of parts; undefined when it is absent. */
  readonly target: string | undefined;
  readonly metadata: ReadonlyMap<string, string>;
  readonly signal: AbortSignal;
}

/** `POST /files`: writes the body, or the `file` parts of a multipart body, each as a whole or not at all. */
export async function uploadFiles(
  request: IncomingMessage,
  response: ServerResponse,
  query: URLSearchParams,
  context: FilesContext,
): Promise<void> {
  const { agent, clock } = context;
  const contentType = request.headers['content-type'] ?? '';
  const mediaType = contentType.split(';', 1)[0]?.trim().toLowerCase() ?? '';
  const multipart = mediaType.startsWith('multipart/');
  if (!multipart && mediaType !== 'application/octet-stream') {
    throw new PlatformError('invalid_argument', `unsupported content type: ${contentType}`);
  }
  const target = query.get('path') ?? undefined;
  if (!multipart && (target === undefined || target === '')) {
    throw new PlatformError('invalid_argument', 'the path query parameter is required for this content type');
  }
  const metadata = readMetadata(request.headers);
  const signal = signalOfAnswer(response);
  const user = await withDeadline(clock, GUEST_CALL_MS, signal, (bounded) =>
    lookupFileUser(agent, query.get('username') ?? context.defaultUser, bounded),
  );

  const upload: Upload = { context, user, target: target === '' ? undefined : target, metadata, signal };
  const body = decodeBody(readRequestBody(request, { clock, idleMs: BODY_IDLE_MS }), request);
  const written = multipart
    ? await writeParts(upload, body, contentType)
    : [await writeOne(upload, resolve(upload, target ?? ''), body)];
  sendJson(response, 200, written);
}

/** Undoes the `Content-Encoding` of a request. */
function decodeBody(body: AsyncIterable<Uint8Array>, request: IncomingMessage): AsyncIterable<Uint8Array> {
  const encoding = (request.headers['content-encoding'] ?? 'identity').trim().toLowerCase();
  if (encoding === 'identity' || encoding === '') return body;
  if (encoding === 'gzip' || encoding === 'x-gzip') return gunzip(body);
  throw new PlatformError('invalid_argument', `unsupported content encoding: ${encoding}`);
}

async function* gunzip(body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  const plain = createGunzip({ chunkSize: CHUNK_BYTES });
  // The loop below sees the outcome: pipeline destroys `plain` with the error of either side.
  pipeline(Readable.from(body, { objectMode: false }), plain, () => undefined);
  try {
    for await (const chunk of plain) yield chunk;
  } catch (caught) {
    if (caught instanceof PlatformError) throw caught;
    throw new PlatformError('invalid_argument', 'the body is not valid gzip', { cause: caught });
  }
}

async function writeParts(
  upload: Upload,
  body: AsyncIterable<Uint8Array>,
  contentType: string,
): Promise<readonly WrittenFile[]> {
  const written: WrittenFile[] = [];
  const paths = new Set<string>();
  for await (const part of readMultipart(body, boundaryOf(contentType))) {
    if (part.name !== FILE_PART) continue;
    const target = upload.target ?? part.filename;
    if (target === undefined || target === '') {
      throw new PlatformError('invalid_argument', "a part 'file' has no filename and there is no path query parameter");
    }
    const path = resolve(upload, target);
    if (paths.has(normalize(path))) {
      throw new PlatformError('invalid_argument', `two parts of this request have the same path '${path}'`);
    }
    paths.add(normalize(path));
    written.push(await writeOne(upload, path, part.body));
  }
  return written;
}

async function writeOne(upload: Upload, path: string, body: AsyncIterable<Uint8Array>): Promise<WrittenFile> {
  const { context, user, metadata, signal } = upload;
  // A failure of the client's body is told as such, however the transfer to the guest reports it.
  let bodyFailure: PlatformError | undefined;
  const watched = (async function* () {
    try {
      yield* body;
    } catch (caught) {
      bodyFailure = PlatformError.fromUnknown(caught);
      throw bodyFailure;
    }
  })();
  const request = { path, uid: user.uid, gid: user.gid, mode: FILE_MODE, xattrs: toXattrs(metadata) };
  await context.agent.writeFile(request, watched, signal).catch((caught: unknown) => {
    throw bodyFailure ?? writeError(caught, path);
  });
  const attributes = toMetadataObject(metadata);
  return { name: basename(path), path, type: 'file', ...(attributes === undefined ? {} : { metadata: attributes }) };
}

function resolve({ user, context }: Upload, target: string): string {
  return resolveGuestPath(target, { home: user.home, defaultWorkdir: context.defaultWorkdir });
}
