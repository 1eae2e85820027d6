import type { ServerResponse } from 'node:http';
import { Socket } from 'node:net';

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

/** Breaks one answer so that its client sees a broken connection, never a finished body. */
export function resetConnection(response: ServerResponse): void {
  const { socket } = response;
  if (socket instanceof Socket && !socket.destroyed) socket.resetAndDestroy();
  response.destroy();
}
