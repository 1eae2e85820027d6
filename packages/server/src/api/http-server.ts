import { createServer, type RequestListener, type Server } from 'node:http';
import { answerClientError } from './errors.ts';

/** Longest head of a request, bytes: signed URLs and metadata filters are long, cookies are not ours. */
const MAX_HEADER_BYTES = 32 * 1024;

/**
 * The plain-HTTP listener for control plane and sandboxes. Requests may last for ever (streams), so only their heads
 * are timed; connections idle longer than the keep-alive of any client (contract e2b.md 1.3).
 */
export function createHttpServer(listener: RequestListener): Server {
  const server = createServer(
    {
      maxHeaderSize: MAX_HEADER_BYTES,
      requestTimeout: 0,
      headersTimeout: 20_000,
      connectionsCheckingInterval: 5_000,
      keepAliveTimeout: 75_000,
      noDelay: true,
    },
    listener,
  );
  // A failing client must not be able to keep its neighbours waiting; Node gives the socket as a Duplex.
  server.on('clientError', answerClientError);
  return server;
}
