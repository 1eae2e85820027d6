import type { Clock } from './clock.ts';
import { PlatformError } from './errors.ts';

export interface CallBounds {
  /** Who is called, for the error: `the engine`, `the ledger`. */
  readonly what: string;
  /** Milliseconds after which the call is aborted and fails with `deadline_exceeded`. */
  readonly timeoutMs: number;
  /** How long an aborted call may unwind before it is left alone, milliseconds; 0: it is left at once. */
  readonly graceMs: number;
  /** Aborts the call from outside; its reason is the outcome. */
  readonly signal?: AbortSignal;
}

/**
 * Calls something outside under a deadline. The call gets a signal that aborts at the deadline or with `bounds.signal`; a
 * call that does not react is left behind after the grace, so nobody ever waits longer than `timeoutMs + graceMs`. What a
 * call that was left behind still acquires must be released by whoever registered it for that before.
 */
export async function callWithin<T>(
  clock: Clock,
  bounds: CallBounds,
  call: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  bounds.signal?.throwIfAborted();
  const controller = new AbortController();
  const leftBehind = Promise.withResolvers<never>();
  let grace: Disposable | undefined;
  const abort = (reason: unknown): void => {
    if (controller.signal.aborted) return;
    controller.abort(reason);
    if (bounds.graceMs === 0) leftBehind.reject(reason);
    else grace = clock.timer(bounds.graceMs, () => leftBehind.reject(reason));
  };
  const onOuterAbort = (): void => abort(bounds.signal?.reason);
  bounds.signal?.addEventListener('abort', onOuterAbort, { once: true });
  using _deadline = clock.timer(bounds.timeoutMs, () =>
    abort(
      new PlatformError('deadline_exceeded', `${bounds.what} did not answer within ${bounds.timeoutMs / 1000} s`, {
        details: { what: bounds.what, timeoutMs: bounds.timeoutMs },
      }),
    ),
  );
  try {
    return await Promise.race([call(controller.signal), leftBehind.promise]);
  } catch (error) {
    // A call that was aborted fails in its own words; the reason for the abort is what the caller has to know.
    if (controller.signal.aborted) throw controller.signal.reason;
    throw error;
  } finally {
    grace?.[Symbol.dispose]();
    bounds.signal?.removeEventListener('abort', onOuterAbort);
  }
}
