import { errorOfStatus, GUEST_STATUS, type GuestStatus } from '@agentenv/agent';
import type { PlatformError } from '@agentenv/core';

/** The error a caller gets when the guest answers with that status, exactly as over the wire. */
export function guestError(status: GuestStatus, message: string): PlatformError {
  return errorOfStatus(GUEST_STATUS[status], 0, message);
}
