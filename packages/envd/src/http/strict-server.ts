import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerOptions,
  type ServerResponse,
  STATUS_CODES,
} from 'node:http';
import type { Duplex } from 'node:stream';
import { type Clock, PlatformError, shorten } from '@agentenv/core';
import { sendError } from './answer.ts';
import { errorAnswer } from './errors.ts';
import { closeAfterAnswer, limitUnreadBody } from './linger.ts';

export interface StrictServerOptions {
  readonly clock: Clock;
  readonly limits: Omit<ServerOptions, 'requireHostHeader'>;
  readonly onRequest: RequestListener;
  /** Requests whose clients wait for a `100 Continue`; unless given they get it, and `onRequest` the request. */
  readonly onContinue?: RequestListener;
}

/** What Node's parser calls a fault, in the words of our errors; any other is a malformed request. */
const PARSER_ERRORS: ReadonlyMap<string | undefined, readonly [code: PlatformError['code'], message: string]> = new Map(
  [
    ['HPE_HEADER_OVERFLOW', ['header_too_large', 'the request headers are too large']],
    ['HPE_CHUNK_EXTENSIONS_OVERFLOW', ['payload_too_large', 'the chunk extensions are too large']],
    ['ERR_HTTP_REQUEST_TIMEOUT', ['request_timeout', 'the request did not arrive in time']],
  ],
);

/**
 * A server of HTTP that answers what is no proper request in the form of every error, where Node has other words or
 * none: malformed bytes, a head without one `Host` (RFC 9112 section 3.2), an expectation nobody knows.
 */
export function createStrictServer({ clock, limits, onRequest, onContinue }: StrictServerOptions): Server {
  const server = createServer({ ...limits, requireHostHeader: false });
  const answers = createAnswerBook();
  /** Connections that were answered for the last time; their parser may go on finding faults. */
  const ended = new WeakSet<Duplex>();
  const checked =
    (listener: RequestListener): RequestListener =>
    (request, response) => {
      if (request.httpVersionMajor === 1) answers.add(request.socket, response);
      const fault = headFault(request);
      if (fault === undefined) listener(request, response);
      else refuseRequest(request, response, fault, clock);
    };
  server.on('request', checked(onRequest));
  server.on(
    'checkContinue',
    checked((request, response) => {
      if (onContinue !== undefined) {
        onContinue(request, response);
        return;
      }
      response.writeContinue();
      onRequest(request, response);
    }),
  );
  server.on(
    'checkExpectation',
    checked((request, response) => {
      const expectation = shorten(String(request.headers.expect), 64);
      const message = `the expectation '${expectation}' is not supported`;
      refuseRequest(request, response, new PlatformError('expectation_failed', message), clock);
    }),
  );
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    if (ended.has(socket) && error.code !== 'ECONNRESET') return;
    ended.add(socket);
    if (error.code === 'ECONNRESET' || !socket.writable || answers.hasBegun(socket)) {
      socket.destroy();
      return;
    }
    const [code, message] = PARSER_ERRORS.get(error.code) ?? ['invalid_argument', 'the request is malformed'];
    endWithError(socket, new PlatformError(code, message), clock);
  });
  return server;
}

/** What is wrong with the head of a request that a parser lets pass; undefined: nothing. */
export function headFault(request: IncomingMessage): PlatformError | undefined {
  const { rawHeaders, httpVersion, httpVersionMajor, headers } = request;
  let hosts = 0;
  for (let index = 0; index < rawHeaders.length; index += 2) {
    if (rawHeaders[index]?.length === 4 && rawHeaders[index]?.toLowerCase() === 'host') hosts++;
  }
  if (hosts > 1) return new PlatformError('invalid_argument', 'the request has more than one Host header');
  if (httpVersionMajor === 1) {
    if (hosts === 1 || httpVersion === '1.0') return undefined;
    return new PlatformError('invalid_argument', 'the request has no Host header');
  }
  const authority = headers[':authority'];
  if (authority === undefined && hosts === 0) {
    return new PlatformError('invalid_argument', 'the request names no host');
  }
  if (authority !== undefined && hosts === 1 && headers.host !== authority) {
    return new PlatformError('invalid_argument', 'the Host header names another host than :authority');
  }
  return undefined;
}

/** Answers a request whose head is in doubt; over HTTP/1 nobody knows where the next one begins, so it is the last one. */
export function refuseRequest(
  request: IncomingMessage,
  response: ServerResponse,
  error: PlatformError,
  clock: Clock,
): void {
  limitUnreadBody(request, response, clock);
  if (request.httpVersionMajor === 1) response.setHeader('Connection', 'close');
  sendError(response, error);
}

/** Answers on the bare socket, where there is no response to write to, and ends the connection. */
export function endWithError(socket: Duplex, error: PlatformError, clock: Clock): void {
  const { status, body } = errorAnswer(error);
  const text = JSON.stringify(body);
  // Neither a parser gets to see what still comes, nor is an error of the connection any news.
  socket.removeAllListeners('data');
  socket.on('error', () => socket.destroy());
  socket.write(
    [
      `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}`,
      'content-type: application/json; charset=utf-8',
      `content-length: ${Buffer.byteLength(text)}`,
      'connection: close',
      '',
      text,
    ].join('\r\n'),
  );
  closeAfterAnswer(socket, clock);
}

/** The answers under way on each connection. */
function createAnswerBook() {
  const open = new WeakMap<Duplex, Set<ServerResponse>>();
  return {
    add(socket: Duplex, response: ServerResponse): void {
      const answers = open.get(socket) ?? new Set();
      open.set(socket, answers.add(response));
      response.once('close', () => answers.delete(response));
    },
    /** Whether bytes written to the connection could be taken for a part of an answer to something else. */
    hasBegun(socket: Duplex): boolean {
      const answers = [...(open.get(socket) ?? [])];
      return answers.length > 1 || answers.some(({ headersSent }) => headersSent);
    },
  };
}
