import { PlatformError } from '@agentenv/core';
import { fileFailure } from './file-failure.ts';

/** Why a file could not be written, in the words of contract e2b.md section 8.4. */
export function writeError(caught: unknown, path: string): PlatformError {
  const error = PlatformError.fromUnknown(caught);
  switch (error.details.status) {
    case 'IS_DIRECTORY':
      return new PlatformError('invalid_argument', `path '${path}' is a directory`, { cause: error });
    case 'NOT_DIRECTORY':
      return new PlatformError('invalid_argument', `a parent of path '${path}' is not a directory`, { cause: error });
    case 'NOT_REGULAR':
      return new PlatformError('invalid_argument', `path '${path}' is not a regular file`, { cause: error });
    case 'NO_SPACE':
      return new PlatformError('no_space', `no space left for '${path}'`, { cause: error });
    default:
      return fileFailure(error);
  }
}
