import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { ERROR_CATALOGUE } from '@agentenv/protocol';
import type { DataPlane } from '../proxy/data-plane.ts';
import { answerClientError, endWithError } from './errors.ts';

/** Longest head of a request, bytes: signed URLs and metadata filters are long, cookies are not ours. */
export const MAX_HEADER_BYTES = 32 * 1024;
/** How long a connection may be idle: longer than the keep-alive of any client (contract e2b.md 1.3), milliseconds. */
export const KEEP_ALIVE_MS = 75_000;

/** What a listener puts up with. */
export interface ListenerLimits {
  /** How long the head of a request may take to arrive, from the connection or the request before, milliseconds. */
  readonly headMs: number;
  /** How often that is looked at, milliseconds. */
  readonly checkMs: number;
  /** Connections at once; what comes beyond is closed. */
  readonly maxConnections: number;
}

export const LISTENER_LIMITS: ListenerLimits = { headMs: 20_000, checkMs: 5_000, maxConnections: 16_384 };

/** Node's own switch for clients that end their side before they are answered; its types do not know it. */
type HalfOpenServer = Server & { httpAllowHalfOpen: boolean };

/**
 * The HTTP server for control plane and sandboxes; connections of other listeners may be given to it. Requests may last
 * for ever (streams), so only their heads are timed.
 */
export function createHttpServer(
  dataPlane: DataPlane,
  controlPlane: RequestListener,
  limits: ListenerLimits = LISTENER_LIMITS,
): Server {
  const server = createServer({
    maxHeaderSize: MAX_HEADER_BYTES,
    requestTimeout: 0,
    headersTimeout: limits.headMs,
    connectionsCheckingInterval: limits.checkMs,
    keepAliveTimeout: KEEP_ALIVE_MS,
    noDelay: true,
    shouldUpgradeCallback: (request) => dataPlane.takesUpgrade(request),
  }) as HalfOpenServer;
  // The size of the head is the limit; by number Node would leave the last ones out without a word.
  server.maxHeadersCount = 0;
  server.maxConnections = limits.maxConnections;
  server.on('request', (request, response) => {
    if (!dataPlane.handle(request, response)) controlPlane(request, response);
  });
  server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
    // A sandbox decides for itself whether it wants the body.
    if (dataPlane.handle(request, response)) return;
    response.writeContinue();
    controlPlane(request, response);
  });
  server.on('upgrade', (request, socket, early) => dataPlane.upgrade(request, socket as Socket, early));
  server.on('connect', (_request, socket) => refuseConnect(socket as Socket));
  server.httpAllowHalfOpen = true;
  server.on('connection', (socket: Socket) => {
    socket.on('end', () => {
      if (!dataPlane.hearsOut(socket)) socket.end();
    });
  });
  server.on('clientError', answerClientError);
  return server;
}

function refuseConnect(socket: Socket): void {
  socket.on('error', () => socket.destroy());
  endWithError(socket, ERROR_CATALOGUE.method_not_allowed.http, 'CONNECT is not supported');
}
