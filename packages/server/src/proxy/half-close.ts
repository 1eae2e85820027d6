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

/** A connection with answers that are heard out. */
interface Watched {
  answers: number;
  /** Stops to watch for its end. */
  readonly stop: () => void;
}

export function createHalfClose({ clock, silenceMs }: HalfCloseOptions): HalfClose {
  const watched = new WeakMap<Socket, Watched>();
  const released = new WeakSet<Socket>();

  function watch(socket: Socket): Watched {
    let timer: Disposable | undefined;
    const onEnd = (): void => {
      const before = socket.bytesWritten;
      timer = clock.timer(silenceMs, () => {
        if (socket.bytesWritten > before) onEnd();
        else socket.destroy();
      });
    };
    socket.once('end', onEnd);
    const state: Watched = {
      answers: 0,
      stop() {
        socket.off('end', onEnd);
        timer?.[Symbol.dispose]();
      },
    };
    watched.set(socket, state);
    return state;
  }

  return {
    hearsOut: (socket) => watched.has(socket) || released.has(socket),
    hearOut(socket, response) {
      // Requests sent one behind the other are answered on one connection.
      const state = watched.get(socket) ?? watch(socket);
      state.answers++;
      response.once('close', () => {
        state.answers--;
        if (state.answers > 0) return;
        state.stop();
        watched.delete(socket);
      });
    },
    letGo(socket) {
      released.add(socket);
    },
  };
}
