import { createConnection, type Socket } from 'node:net';
import { type Clock, PlatformError } from '@agentenv/core';
import { onAbort } from './channel/abort.ts';
import { errorOfAbort } from './channel/status.ts';
import type { ChannelEndpoint } from './endpoint.ts';

/** Longest path of a unix socket address on Linux, bytes without the final NUL. */
export const MAX_SOCKET_PATH = 107;

/** Pause between two attempts, milliseconds: engines listen within a few tens of them. */
const RETRY_MS = 5;

export interface UnixSocketEndpointOptions {
  readonly clock: Clock;
}

function connectOnce(path: string): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  const socket = createConnection(path);
  socket.once('error', reject);
  socket.once('connect', () => {
    socket.off('error', reject);
    resolve(socket);
  });
  return promise;
}

/**
 * An endpoint on a named unix socket, whose captures may happen while it is connected (a virtio port does not notice).
 * @throws PlatformError `invalid_argument` when the path is longer than MAX_SOCKET_PATH bytes.
 */
export function createUnixSocketEndpoint(path: string, { clock }: UnixSocketEndpointOptions): ChannelEndpoint {
  const length = Buffer.byteLength(path);
  if (length > MAX_SOCKET_PATH) {
    throw new PlatformError('invalid_argument', `a socket path of ${length} bytes; at most ${MAX_SOCKET_PATH} work`, {
      details: { path },
    });
  }

  async function pause(signal: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    using _aborted = onAbort(signal, reject);
    using _timer = clock.timer(RETRY_MS, resolve);
    await promise;
  }

  return {
    async connect(signal) {
      for (;;) {
        if (signal.aborted) throw errorOfAbort(signal);
        try {
          return await connectOnce(path);
        } catch {
          // Nobody listens yet, or not any more; the signal says how long that is worth waiting for.
          await pause(signal);
        }
      }
    },
    async detachForCapture() {},
  };
}
