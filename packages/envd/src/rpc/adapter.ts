import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Clock, Log } from '@agentenv/core';
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
import { isExpected, isSandboxGone, toConnectError } from './connect-error.ts';

/** Largest message of a call: 4 MiB of input in base64 and more, bytes. */
const MAX_MESSAGE_BYTES = 8 * 1024 * 1024;
/** Longest silence of a client in the middle of its request message, milliseconds. */
const BODY_IDLE_MS = 60_000;
/** The longest a stream of input may be silent: its clients send keepalives far more often. */
const STREAM_IDLE_MS = 3_600_000;

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
    const { breakOff } = request.contextValues.get(CALL_VALUES);
    const translate = (caught: unknown): ConnectError => {
      if (isSandboxGone(caught)) breakOff();
      if (!isExpected(caught)) log.error({ err: caught, rpc: request.method.name }, 'an RPC failed');
      return toConnectError(caught);
    };
    try {
      const answer = await next(request);
      return answer.stream ? { ...answer, message: translateStream(answer.message, translate) } : answer;
    } catch (caught) {
      throw translate(caught);
    }
  };

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
    // Deadlines are kept by the handlers: the library's would only abort a signal, and not by our clock.
    if (timeoutMs !== undefined) header.delete(HEADERS.connectTimeoutMs);
    const answer = await handler({
      httpVersion: request.httpVersion,
      method: request.method,
      url: `http://sandbox${handler.requestPath}`,
      header,
      // The library answers `internal` for whatever is none of its own errors.
      body: translateStream(readRequestBody(request, { clock, idleMs }), toConnectError),
      signal: signalOfAnswer(response),
      contextValues: createContextValues().set(CALL_VALUES, {
        user: basicUser(request.headers.authorization),
        timeoutMs,
        arrivedAt: clock.monotonic(),
        keepaliveMs: keepaliveMs(request.headers),
        breakOff: () => resetConnection(response),
        writeFrame: readsJsonStream(request) ? (frame) => writeChunk(response, frame) : undefined,
      }),
    });
    await sendUniversal(answer, request, response);
  }

  return {
    find(path) {
      const handler = handlers.get(path);
      if (handler === undefined) return undefined;
      return async (request, response) => {
        try {
          await serve(handler, request, response);
        } catch (caught) {
          log.warn({ err: caught, rpc: handler.requestPath }, 'an RPC could not be answered');
          sendError(response, caught);
        }
      };
    },
  };
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
