import type { PlatformError } from '@agentenv/core';
import { errorOfAbort } from './status.ts';

/** Calls back with the error of an abort, at once if it happened already; disposing stops listening. */
export function onAbort(signal: AbortSignal | undefined, callback: (error: PlatformError) => void): Disposable {
  const listener = (): void => {
    if (signal !== undefined) callback(errorOfAbort(signal));
  };
  if (signal?.aborted === true) listener();
  else signal?.addEventListener('abort', listener, { once: true });
  return {
    [Symbol.dispose]() {
      signal?.removeEventListener('abort', listener);
    },
  };
}
