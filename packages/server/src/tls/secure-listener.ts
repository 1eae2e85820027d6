import { once } from 'node:events';
import type { Server as HttpServer, IncomingMessage, ServerResponse } from 'node:http';
import { createServer as createHttp2Server, type Http2Server, type ServerHttp2Session } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { createServer, type TLSSocket } from 'node:tls';
import { type Clock, type Log, PlatformError } from '@agentenv/core';
import { refuseRequest } from '@agentenv/envd';
import { KEEP_ALIVE_MS, LISTENER_LIMITS, MAX_HEADER_BYTES } from '../api/http-server.ts';
import { type CertificateFiles, loadCertificates, MIN_TLS_VERSION } from './certificates.ts';

export interface SecureListenerOptions {
  readonly host: string;
  readonly port: number;
  readonly files: readonly CertificateFiles[];
  /** Takes the connections of HTTP/1 and the requests of both versions. */
  readonly http: HttpServer;
  readonly clock: Clock;
  readonly log: Log;
  /** How often changes of the files are looked for, milliseconds. */
  readonly checkMs?: number;
}

/** A TLS listener in front of an HTTP server. Disposing ends its connections. */
export interface SecureListener extends AsyncDisposable {
  readonly port: number;
}

const CHECK_MS = 30_000;
const HEAD_TOO_LARGE = 'the request headers are too large';

/** Longest handshake, milliseconds. */
const HANDSHAKE_TIMEOUT_MS = 10_000;
/** Requests one HTTP/2 connection may have under way: as many as the pools of the E2B SDK send (contract e2b.md 1.1). */
const MAX_STREAMS = 2_000;
/**
 * What the protocol library takes of one head, bytes with 32 for each field, and fields: so much more than we do that a
 * head of any other client's library arrives and can be refused in words. The library only resets.
 */
const MAX_RECEIVED_HEADER_BYTES = 256 * 1024;
const MAX_RECEIVED_HEADERS = MAX_RECEIVED_HEADER_BYTES / 32;

/**
 * Listens with TLS and offers HTTP/2 and HTTP/1.1 (WebSockets, which browsers open with HTTP/1.1). The certificate is
 * chosen by the name the client asks for, and renewed when its file is. Rejects with `invalid_argument` when a
 * certificate cannot be used and with `unavailable` when the address cannot be had.
 */
export async function openSecureListener(options: SecureListenerOptions): Promise<SecureListener> {
  const { http, clock, log } = options;
  await using undo = new AsyncDisposableStack();
  const certificates = undo.use(
    await loadCertificates({
      ...{ files: options.files, checkMs: options.checkMs ?? CHECK_MS, clock, log },
      onChange: () => server.setSecureContext({ ...certificates.standard, minVersion: MIN_TLS_VERSION }),
    }),
  );
  const http2 = createFront(http, clock);
  const sockets = new Set<TLSSocket>();
  const server = createServer({
    ...certificates.standard,
    minVersion: MIN_TLS_VERSION,
    ALPNProtocols: ['h2', 'http/1.1'],
    SNICallback: (name, answer) => answer(null, certificates.find(name)),
    handshakeTimeout: HANDSHAKE_TIMEOUT_MS,
    // What holds for plain connections: a client may end its side before it is answered.
    allowHalfOpen: true,
    noDelay: true,
  });
  server.maxConnections = LISTENER_LIMITS.maxConnections;
  server.on('secureConnection', (socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
    (socket.alpnProtocol === 'h2' ? http2 : http).emit('connection', socket);
  });
  server.on('tlsClientError', (error, socket) => {
    log.debug({ err: error }, 'a TLS handshake failed');
    socket.destroy();
  });
  server.listen({ host: options.host, port: options.port });
  try {
    await once(server, 'listening');
  } catch (error) {
    const address = `${options.host}:${options.port}`;
    throw new PlatformError('unavailable', `cannot listen on ${address}: ${(error as Error).message}`, {
      cause: error,
    });
  }
  undo.defer(async () => {
    const closed = once(server, 'close');
    server.close();
    for (const socket of sockets) socket.destroy();
    await closed;
  });
  const everything = undo.move();
  return {
    port: (server.address() as AddressInfo).port,
    [Symbol.asyncDispose]: () => everything.disposeAsync(),
  };
}

/** HTTP/2 in front of the same handlers: its requests and answers have the interface of HTTP/1 ones. */
function createFront(http: HttpServer, clock: Clock): Http2Server {
  const front = createHttp2Server({
    settings: { maxConcurrentStreams: MAX_STREAMS, maxHeaderListSize: MAX_RECEIVED_HEADER_BYTES },
    maxHeaderListPairs: MAX_RECEIVED_HEADERS,
  });
  for (const event of ['request', 'checkContinue', 'checkExpectation'] as const) {
    front.on(event, (...both) => {
      const [request, response] = both as unknown as [IncomingMessage, ServerResponse];
      if (headBytes(request) <= MAX_HEADER_BYTES) http.emit(event, request, response);
      else refuseRequest(request, response, new PlatformError('header_too_large', HEAD_TOO_LARGE), clock);
    });
  }
  front.on('session', closeWhenIdle);
  // Faults of a connection; it is closed by then, and its streams know.
  front.on('sessionError', () => {});
  return front;
}

/** The size of a head as the parser of HTTP/1 counts it: names and values. */
function headBytes({ rawHeaders }: IncomingMessage): number {
  let bytes = 0;
  for (const text of rawHeaders) bytes += text.length;
  return bytes;
}

/** Ends a connection on which nothing was under way for the time of any other. */
function closeWhenIdle(session: ServerHttp2Session): void {
  let streams = 0;
  session.on('stream', (stream) => {
    streams++;
    stream.once('close', () => streams--);
  });
  session.setTimeout(KEEP_ALIVE_MS);
  session.on('timeout', () => {
    if (streams === 0) session.close();
  });
}
