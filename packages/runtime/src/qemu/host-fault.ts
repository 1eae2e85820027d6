import { PlatformError } from '@agentenv/core';

/** The error of a call that may have met a full disk: then `no_space`, else as `PlatformError.fromUnknown` would say. */
export function hostFault(caught: unknown, message: string): PlatformError {
  const code = caught instanceof Error && 'code' in caught ? caught.code : undefined;
  if (code === 'ENOSPC' || code === 'EDQUOT') {
    return new PlatformError('no_space', "the host's data disk is full", { cause: caught });
  }
  return PlatformError.fromUnknown(caught, message);
}
