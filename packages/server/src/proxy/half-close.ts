import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Clock } from '@agentenv/core';

/**
 * What the end of a client's side means. One that asks, ends its side and reads on cannot be told from one that has
 * closed, until something is sent to it: a client that closed answers with a reset. So an answer goes on as long as its
 * bytes move, and is given up after a while of silence.
 */
export interface HalfClose {
  /** Whether an answer on this connection goes on although the client has ended its side. */
  hearsOut(socket: Socket): boolean;
  /** Lets `response` go on for as long as it lasts. */
  hearOut(socket: Socket, response: ServerResponse): void;
  /** Leaves a connection that is no longer one of HTTP to whoever has it. */
  letGo(socket: Socket): void;
}

export interface HalfCloseOptions {
  readonly clock: Clock;
  /** Silence after which a client that ended its side counts as gone, milliseconds. */
  readonly silenceMs: number;
}

export function createHalfClose({ clock, silenceMs }: HalfCloseOptions): HalfClose {
  const heardOut = new WeakMap<Socket, number>();
  const count = (socket: Socket, by: 1 | -1): void => {
    heardOut.set(socket, (heardOut.get(socket) ?? 0) + by);
  };
  return {
    hearsOut: (socket) => (heardOut.get(socket) ?? 0) > 0,
    hearOut(socket, response) {
      count(socket, 1);
      let timer: Disposable | undefined;
      const watch = (): void => {
        const before = socket.bytesWritten;
        timer = clock.timer(silenceMs, () => {
          if (socket.bytesWritten > before) watch();
          else socket.destroy();
        });
      };
      socket.once('end', watch);
      response.once('close', () => {
        count(socket, -1);
        socket.off('end', watch);
        timer?.[Symbol.dispose]();
      });
    },
    letGo: (socket) => count(socket, 1),
  };
}
