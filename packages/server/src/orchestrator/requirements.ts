import { PlatformError } from '@agentenv/core';

/** Refuses a duration that is not above zero, naming the field (contract/README, "timeout ≤ 0"). */
export function requireDuration(field: string, seconds: number): void {
  if (!(seconds > 0)) throw new PlatformError('invalid_argument', `${field} must be greater than 0`);
}
