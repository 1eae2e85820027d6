import { once } from 'node:events';
import type { ServerResponse } from 'node:http';

/**
 * Writes a piece of an answer; text is Latin-1. Resolves when the client has taken enough to be sent more, or is gone,
 * which `response.destroyed` tells.
 */
export async function writeChunk(response: ServerResponse, chunk: Uint8Array | string): Promise<void> {
  if (response.destroyed || response.write(chunk, 'latin1')) return;
  const stop = new AbortController();
  try {
    await Promise.race([
      once(response, 'drain', { signal: stop.signal }),
      once(response, 'close', { signal: stop.signal }),
    ]);
  } finally {
    stop.abort();
  }
}
