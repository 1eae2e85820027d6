import type { ServerResponse } from 'node:http';
import { constants, Http2ServerResponse } from 'node:http2';
import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { TLSSocket } from 'node:tls';

/** The answers that have not ended, so that they can be broken off when the sandbox is gone. */
export interface OpenAnswers {
  add(response: ServerResponse): void;
  /** Resets every connection with an open answer: no end frame, no polite close (contract e2b.md section 10.3). */
  reset(): void;
}

export function createOpenAnswers(): OpenAnswers {
  const open = new Set<ServerResponse>();
  return {
    add(response) {
      open.add(response);
      response.once('close', () => open.delete(response));
    },
    reset() {
      for (const response of open) resetConnection(response);
      open.clear();
    },
  };
}

/** Breaks one answer so that its client sees a broken connection, never a finished body; over HTTP/2 only its stream. */
export function resetConnection(response: ServerResponse): void {
  // Node's HTTP/2 answers have the interface of HTTP/1 ones, but their socket belongs to other streams as well.
  const answer: unknown = response;
  if (answer instanceof Http2ServerResponse) {
    answer.stream.close(constants.NGHTTP2_INTERNAL_ERROR);
    return;
  }
  if (response.socket !== null) resetSocket(response.socket);
  response.destroy();
}

/** Breaks a connection so that its peer cannot take what it got for complete. */
export function resetSocket(socket: Duplex): void {
  if (socket.destroyed) return;
  // TLS has no reset; without its closing message the end counts as a truncation.
  if (socket instanceof Socket && !(socket instanceof TLSSocket)) socket.resetAndDestroy();
  else socket.destroy();
}
