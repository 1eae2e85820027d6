import { PlatformError } from '@agentenv/core';
import { findHookFailure } from '../hooks/failure.ts';

/** Failures of a step of the life cycle that a client should see as they are. */
const SHOWN_FAILURES: ReadonlySet<PlatformError['code']> = new Set([
  'capacity',
  'conflict',
  'create_failed',
  'deadline_exceeded',
  'extension_failed',
  'extension_rejected',
  'no_space',
  'unavailable',
]);

/** What a client sees of a failed step; anything it could not make sense of becomes `code` with `message`. */
export function toShownFailure(
  error: unknown,
  code: Extract<PlatformError['code'], 'create_failed' | 'internal'>,
  message: string,
): PlatformError {
  // What the operator's extension said is the reason, whatever failed while it was undone.
  const failure = findHookFailure(error) ?? PlatformError.fromUnknown(error);
  return SHOWN_FAILURES.has(failure.code) ? failure : new PlatformError(code, message, { cause: failure });
}

/** Cut off because somebody wanted it gone, not because anything went wrong. */
export function isDeliberate(reason: unknown): boolean {
  return reason instanceof PlatformError && (reason.code === 'killed' || reason.code === 'unavailable');
}
