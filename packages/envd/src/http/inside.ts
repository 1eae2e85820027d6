import type { RequestListener } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Agent } from '@agentenv/agent';
import { type Clock, type Log, PlatformError } from '@agentenv/core';
import { ENVD_PORT } from '@agentenv/protocol';
import { createStrictServer } from './strict-server.ts';

/** Connections from inside at once; each may make the host hold a window of the channel, 256 KiB. */
const MAX_CONNECTIONS = 256;
/** Silence before a request after which a connection is closed, milliseconds. */
const IDLE_MS = 640_000;
/** Longest head of a request, bytes; the same as for clients outside. */
const MAX_HEADER_BYTES = 32 * 1024;
/** What watches for the end of an answer: its pipeline, the list of open answers and the call itself. */
const MAX_LISTENERS = 32;

export interface InsideOptions {
  readonly agent: Pick<Agent, 'listenPort'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly handle: RequestListener;
}

interface Connection {
  /** Requests without a complete answer. */
  requests: number;
  /** The wait for the next request. */
  idle: Disposable | undefined;
}

/**
 * Serves programs inside the sandbox on its 127.0.0.1:49983 and [::1]:49983, where E2B's own daemon listens. The guest
 * listens for us and every connection comes over the channel; the listener ends with it, and with a new generation.
 * A sandbox in which something else has the port goes on without.
 */
export function serveInside({ agent, clock, log, handle }: InsideOptions): AsyncDisposable {
  const connections = new Map<Duplex, Connection>();
  let ended = false;

  function count(socket: Duplex, change: 1 | -1): void {
    const connection = connections.get(socket);
    if (connection === undefined) return;
    connection.requests += change;
    connection.idle?.[Symbol.dispose]();
    connection.idle = connection.requests > 0 ? undefined : clock.timer(IDLE_MS, () => socket.destroy());
  }

  // Never listens itself. Silence is timed here, as Node's own timers need a real socket.
  const limits = { requestTimeout: 0, keepAliveTimeout: IDLE_MS, maxHeaderSize: MAX_HEADER_BYTES };
  const server = createStrictServer({
    ...{ clock, limits },
    onRequest(request, response) {
      const { socket } = request;
      count(socket, 1);
      response.setMaxListeners(MAX_LISTENERS);
      response.once('close', () => count(socket, -1));
      handle(request, response);
    },
  });

  function accept(socket: Duplex): void {
    if (ended || connections.size >= MAX_CONNECTIONS) {
      socket.destroy();
      return;
    }
    const connection: Connection = { requests: 0, idle: clock.timer(IDLE_MS, () => socket.destroy()) };
    connections.set(socket, connection);
    // Node destroys it with the error of a malformed request, which has been answered.
    socket.on('error', () => {});
    socket.once('close', () => {
      connections.delete(socket);
      connection.idle?.[Symbol.dispose]();
    });
    server.emit('connection', socket);
  }

  const listening = agent.listenPort(ENVD_PORT, accept).catch((caught: unknown) => {
    const error = PlatformError.fromUnknown(caught);
    if (error.code !== 'sandbox_unavailable') {
      log.warn({ err: error, port: ENVD_PORT }, 'the guest API cannot be reached from inside');
    }
    return undefined;
  });

  return {
    async [Symbol.asyncDispose]() {
      ended = true;
      for (const socket of connections.keys()) socket.destroy();
      const listener = await listening;
      await listener?.[Symbol.asyncDispose]();
    },
  };
}
