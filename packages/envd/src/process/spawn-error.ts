import { PlatformError } from '@agentenv/core';
import type { SpawnPlan } from './process-table.ts';

/** Why a process could not be started, in the words of contract e2b.md sections 9.1 and 9.2. */
export function spawnError(caught: unknown, plan: SpawnPlan): PlatformError {
  const error = PlatformError.fromUnknown(caught);
  switch (error.details.status) {
    case 'UNKNOWN_USER':
      return new PlatformError('unauthenticated', `invalid username: '${plan.user}'`, { cause: error });
    case 'BAD_CWD':
      return new PlatformError('invalid_argument', `cwd '${plan.cwd || error.message}' does not exist`, {
        cause: error,
      });
    case 'EXEC_FAILED':
      return new PlatformError('invalid_argument', `'${plan.argv[0] ?? ''}' could not be started: ${error.message}`, {
        cause: error,
      });
    default:
      return error;
  }
}
