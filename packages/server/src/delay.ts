import type { Clock } from '@agentenv/core';

/** Resolves after `milliseconds` of `clock`; rejects with the reason of `signal` when that aborts before. */
export async function delay(clock: Clock, milliseconds: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const abort = (): void => reject(signal?.reason);
  using _timer = clock.timer(milliseconds, resolve);
  signal?.addEventListener('abort', abort, { once: true });
  try {
    await promise;
  } finally {
    signal?.removeEventListener('abort', abort);
  }
}
