import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Clock } from '@agentenv/core';

/** What is read and dropped behind an answer, so that its client gets to see it. */
const MAX_DISCARDED_BYTES = 16 * 1024 * 1024;
const MAX_DISCARD_MS = 10_000;

/**
 * Bounds what a client may still send after it was answered: up to 16 MiB and 10 s are read and dropped, then the
 * connection is closed. Whether the answer is the last one of its connection or not, the client gets to see it.
 */
export function limitUnreadBody(request: IncomingMessage, response: ServerResponse, clock: Clock): void {
  // A request whose reading has begun is left to us; otherwise Node would discard the rest without limit.
  request.read(0);
  response.once('finish', () => {
    if (request.complete) return;
    const { socket } = request;
    // Behind the last answer of a connection Node closes it at once; what then still arrives would reset it, and the
    // answer would be lost with it.
    if (request.httpVersionMajor === 1) socket.off('finish', socket.destroy);
    discard(request, clock, () => socket.destroy());
    request.once('end', () => {
      if (request.httpVersionMajor === 1 && socket.writableEnded) destroyOnceSent(socket);
    });
  });
}

/** Closes a connection behind the last answer, which has been written, once its client had the chance to read it. */
export function closeAfterAnswer(socket: Duplex, clock: Clock): void {
  socket.end();
  if (socket.readableEnded) {
    destroyOnceSent(socket);
    return;
  }
  discard(socket, clock, () => socket.destroy());
  socket.once('end', () => destroyOnceSent(socket));
}

/** Reads to the end, or calls `stop` when that is too much or takes too long. */
function discard(source: IncomingMessage | Duplex, clock: Clock, stop: () => void): void {
  let bytes = 0;
  const timer = clock.timer(MAX_DISCARD_MS, stop);
  source.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes > MAX_DISCARDED_BYTES) stop();
  });
  source.once('close', () => timer[Symbol.dispose]());
  source.resume();
}

function destroyOnceSent(socket: Duplex): void {
  if (socket.writableFinished) socket.destroy();
  else socket.once('finish', () => socket.destroy());
}
