import { getSystemErrorMessage } from 'node:util';
import { PlatformError } from '@agentenv/core';

/** "Device or resource busy": a mount point, or what a mount point is below of. */
const EBUSY = 16;

/**
 * A refusal of the guest that no call has words of its own for: of what it failed at it tells the path only, so the
 * system's reason is put behind it. What a mount stands in the way of is the request's fault, not ours.
 */
export function fileFailure(error: PlatformError): PlatformError {
  const { errno } = error.details;
  if (typeof errno !== 'number' || errno <= 0 || !error.message.startsWith('/')) return error;
  const code = errno === EBUSY ? 'invalid_argument' : error.code;
  const message = `path '${error.message}': ${getSystemErrorMessage(-errno)}`;
  return new PlatformError(code, message, { details: error.details, cause: error });
}
