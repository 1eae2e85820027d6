import type { RequestListener, Server } from 'node:http';
import type { Socket } from 'node:net';
import { type Clock, PlatformError } from '@agentenv/core';
import { createStrictServer, endWithError, headFault, limitUnreadBody } from '@agentenv/envd';
import type { DataPlane } from '../proxy/data-plane.ts';

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
  { clock, limits = LISTENER_LIMITS }: { readonly clock: Clock; readonly limits?: ListenerLimits },
): Server {
  const server = createStrictServer({
    clock,
    limits: {
      maxHeaderSize: MAX_HEADER_BYTES,
      requestTimeout: 0,
      headersTimeout: limits.headMs,
      connectionsCheckingInterval: limits.checkMs,
      keepAliveTimeout: KEEP_ALIVE_MS,
      noDelay: true,
      shouldUpgradeCallback: (request) => headFault(request) === undefined && dataPlane.takesUpgrade(request),
    },
    onRequest(request, response) {
      if (dataPlane.handle(request, response)) return;
      limitUnreadBody(request, response, clock);
      controlPlane(request, response);
    },
    onContinue(request, response) {
      // A sandbox decides for itself whether it wants the body.
      if (dataPlane.handle(request, response)) return;
      limitUnreadBody(request, response, clock);
      response.writeContinue();
      controlPlane(request, response);
    },
  }) as HalfOpenServer;
  // The size of the head is the limit; by number Node would leave the last ones out without a word.
  server.maxHeadersCount = 0;
  server.maxConnections = limits.maxConnections;
  server.on('upgrade', (request, socket, early) => dataPlane.upgrade(request, socket as Socket, early));
  server.on('connect', (_request, socket) => {
    endWithError(socket, new PlatformError('method_not_allowed', 'CONNECT is not supported'), clock);
  });
  server.httpAllowHalfOpen = true;
  server.on('connection', (socket: Socket) => {
    socket.on('end', () => {
      if (!dataPlane.hearsOut(socket)) socket.end();
    });
  });
  return server;
}
