import type { IncomingMessage, ServerResponse } from 'node:http';
import { type Clock, type Log, PlatformError } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';
import {
  type ConnectError,
  type ConnectRouter,
  createConnectRouter,
  createContextValues,
  type Interceptor,
} from '@connectrpc/connect';
import type { UniversalHandler, UniversalServerResponse } from '@connectrpc/connect/protocol';
import { compressionBrotli, compressionGzip } from '@connectrpc/connect-node';
import { sendError, sendJson } from '../http/answer.ts';
import { resetConnection } from '../http/open-answers.ts';
import { readRequestBody } from '../http/request-body.ts';
import { signalOfAnswer } from '../http/signals.ts';
import { writeChunk } from '../http/write.ts';
import { basicUser, connectTimeoutMs, keepaliveMs } from './call-headers.ts';
import { CALL_VALUES } from './call-values.ts';
import { isExpected, isSandboxGone, toConnectError, toRequestError } from './connect-error.ts';

/** Largest message of a call: 4 MiB of input in base64 and more, bytes. */
const MAX_MESSAGE_BYTES = 8 * 1024 * 1024;
/** Longest silence of a client in the middle of its request message, milliseconds. */
const BODY_IDLE_MS = 60_000;
/** The longest a stream of input may be silent: its clients send keepalives far more often. */
const STREAM_IDLE_MS = 3_600_000;
/** Strings of JSON are UTF-8 or refused, as those of binary messages are; the library hands the decoder on. */
const JSON_OPTIONS = { ignoreUnknownFields: true, textDecoder: new TextDecoder('utf-8', { fatal: true }) };
const LATE = 'the time limit of the request has passed';

export interface RpcAdapterOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly routes: (router: ConnectRouter) => void;
}

/** Serves the Connect protocol, JSON and binary, over Node's HTTP server. */
export interface RpcAdapter {
  /** Undefined when no RPC has that path. */
  find(path: string): ((request: IncomingMessage, response: ServerResponse) => Promise<void>) | undefined;
}

/** Turns what handlers throw into the errors of the protocol (contract e2b.md section 9.1). */
const createErrorTranslation =
  (log: Log): Interceptor =>
  (next) =>
  async (request) => {
    const { breakOff, messageRead } = request.contextValues.get(CALL_VALUES);
    const streams = request.method.methodKind === 'server_streaming';
    const translate = (caught: unknown): ConnectError => {
      if (isSandboxGone(caught)) breakOff();
      if (!isExpected(caught)) log.error({ err: caught, rpc: request.method.name }, 'an RPC failed');
      return toConnectError(caught);
    };
    try {
      if (!request.stream) messageRead();
      const readable = request.stream
        ? { ...request, message: translateStream(request.message, toRequestError) }
        : request;
      const answer = await (streams ? next(readable) : unlessAborted(next(readable), request.signal));
      return answer.stream ? { ...answer, message: translateStream(answer.message, translate) } : answer;
    } catch (caught) {
      throw translate(caught);
    }
  };

/** Settles as the promise does, or rejects as soon as the signal aborts: the answer to a call comes in time. */
async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  const aborted = Promise.withResolvers<never>();
  const onAbort = (): void => aborted.reject(signal.reason);
  if (signal.aborted) onAbort();
  signal.addEventListener('abort', onAbort);
  try {
    return await Promise.race([promise, aborted.promise]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}

async function* translateStream<T>(
  messages: AsyncIterable<T>,
  translate: (caught: unknown) => ConnectError,
): AsyncGenerator<T, void, undefined> {
  try {
    yield* messages;
  } catch (caught) {
    throw translate(caught);
  }
}

export function createRpcAdapter({ clock, log, routes }: RpcAdapterOptions): RpcAdapter {
  const router = createConnectRouter({
    grpc: false,
    grpcWeb: false,
    readMaxBytes: MAX_MESSAGE_BYTES,
    jsonOptions: JSON_OPTIONS,
    acceptCompression: [compressionGzip, compressionBrotli],
    interceptors: [createErrorTranslation(log)],
  });
  routes(router);
  const handlers = new Map(router.handlers.map((handler) => [handler.requestPath, handler]));

  async function serve(handler: UniversalHandler, request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.method !== 'POST') {
      response.setHeader('Allow', 'POST');
      sendJson(response, 405, { code: 405, message: `method ${request.method ?? ''} is not allowed, use POST` });
      return;
    }
    const idleMs = handler.method.methodKind === 'client_streaming' ? STREAM_IDLE_MS : BODY_IDLE_MS;
    const timeoutMs = connectTimeoutMs(request.headers);
    const header = toWebHeaders(request);
    // The library's deadlines do not go by our clock. Those of streams are kept by their handlers.
    if (timeoutMs !== undefined) header.delete(HEADERS.connectTimeoutMs);
    const answered = signalOfAnswer(response);
    const late = new AbortController();
    using _timer =
      timeoutMs === undefined || handler.method.methodKind === 'server_streaming'
        ? undefined
        : clock.timer(timeoutMs, () => late.abort(new PlatformError('deadline_exceeded', LATE)));
    let body: AsyncIterable<Uint8Array> | undefined;
    let messageRead = handler.method.methodKind !== 'unary';
    const answer = await handler({
      httpVersion: request.httpVersion,
      method: request.method,
      url: `http://sandbox${handler.requestPath}`,
      header,
      // The library answers `internal` for whatever is none of its own errors.
      body: translateStream(readRequestBody(request, { clock, idleMs }), toConnectError),
      signal: AbortSignal.any([answered, late.signal]),
      contextValues: createContextValues().set(CALL_VALUES, {
        user: basicUser(request.headers.authorization),
        timeoutMs,
        arrivedAt: clock.monotonic(),
        keepaliveMs: keepaliveMs(request.headers),
        messageRead: () => {
          messageRead = true;
        },
        answered,
        breakOff: () => resetConnection(response),
        writeFrame: readsJsonStream(request) ? (frame) => writeChunk(response, frame) : undefined,
        codec: /^application\/json\b/i.test(request.headers['content-type'] ?? '') ? 'json' : 'binary',
        answerWith: (bytes) => {
          body = bytes;
        },
      }),
    });
    if (answer.status === 500 && !messageRead) {
      const message = `the body is no ${handler.method.input.typeName} in the encoding its headers name`;
      sendJson(response, 400, { code: 'invalid_argument', message });
    } else if (body === undefined || answer.status !== 200) await sendUniversal(answer, request, response);
    else await sendBody(answer, body, response);
  }

  return {
    find(path) {
      const handler = handlers.get(path);
      if (handler === undefined) return undefined;
      return async (request, response) => {
        try {
          await serve(handler, request, response);
        } catch (caught) {
          // A client may leave at any time; that is nobody's fault.
          if (PlatformError.fromUnknown(caught).code !== 'canceled') {
            log.warn({ err: caught, rpc: handler.requestPath }, 'an RPC could not be answered');
          }
          sendError(response, caught);
        }
      };
    },
  };
}

/** Sends an answer with another body than the library's. */
async function sendBody(
  { status, header = new Headers() }: UniversalServerResponse,
  body: AsyncIterable<Uint8Array>,
  response: ServerResponse,
): Promise<void> {
  header.delete('content-length');
  header.delete('content-encoding');
  try {
    response.writeHead(status, Object.fromEntries(header));
    for await (const chunk of body) {
      await writeChunk(response, chunk);
      if (response.destroyed) return;
    }
    response.end();
  } catch (caught) {
    // The client must not take what it has for the whole.
    resetConnection(response);
    throw caught;
  }
}

async function sendUniversal(
  answer: UniversalServerResponse,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  if (answer.body === undefined) {
    const message = answer.status === 415 ? `unsupported content type: ${request.headers['content-type'] ?? ''}` : '';
    sendJson(response, answer.status, { code: answer.status, message });
    return;
  }
  const chunks = answer.body[Symbol.asyncIterator]();
  try {
    // Headers may still change until the first bytes are there; then both leave at once.
    let next = await chunks.next();
    response.writeHead(answer.status, answer.header === undefined ? {} : Object.fromEntries(answer.header));
    for (; next.done !== true; next = await chunks.next()) {
      await writeChunk(response, next.value);
      if (response.destroyed) return;
    }
    response.end();
  } finally {
    // Not awaited: the handler was told by its signal, and may be in the middle of something.
    chunks.return?.().catch(() => undefined);
  }
}

function readsJsonStream({ headers }: IncomingMessage): boolean {
  return /^application\/connect\+json\b/i.test(headers['content-type'] ?? '');
}

function toWebHeaders(request: IncomingMessage): Headers {
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers)) {
    if (name.startsWith(':')) continue;
    if (typeof value === 'string') headers.set(name, value);
    else for (const item of value ?? []) headers.append(name, item);
  }
  return headers;
}
