import type { Readable } from 'node:stream';
import { type Clock, PlatformError } from '@agentenv/core';

export interface RequestBodyOptions {
  readonly clock: Clock;
  /** Longest wait for the next bytes while we are reading, milliseconds. */
  readonly idleMs: number;
}

/**
 * The bytes of a request as they arrive. Time in which the consumer does not ask for more does not count as idle, so
 * back-pressure from a slow guest is no fault of the client. Leaving the loop early leaves the socket usable for the
 * answer. Rejects with `request_timeout` when the client stalls and `canceled` when it goes away.
 */
export async function* readRequestBody(
  request: Readable,
  options: RequestBodyOptions,
): AsyncGenerator<Uint8Array, void, undefined> {
  const chunks: AsyncIterator<Buffer> = request.iterator({ destroyOnReturn: false });
  try {
    for (;;) {
      const next = await nextChunk(chunks, options);
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    // The iterator of a request that stalled only settles when its socket closes, so this is not awaited.
    chunks.return?.().catch(() => undefined);
  }
}

async function nextChunk(
  chunks: AsyncIterator<Buffer>,
  { clock, idleMs }: RequestBodyOptions,
): Promise<IteratorResult<Buffer>> {
  const stalled = Promise.withResolvers<never>();
  using _timer = clock.timer(idleMs, () => {
    stalled.reject(new PlatformError('request_timeout', `no request body arrived for ${idleMs / 1000} s`));
  });
  // A socket that breaks is the client's doing; the cause tells which way.
  const chunk = chunks.next().catch((caught: unknown) => {
    throw new PlatformError('canceled', 'the client went away', { cause: caught });
  });
  return await Promise.race([chunk, stalled.promise]);
}
