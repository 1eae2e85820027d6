import type { Agent, GuestUser } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';

/** The guest user a call acts as; an unknown one is `unauthenticated` (contract e2b.md section 9.1). */
export async function lookupRpcUser(agent: Agent, user: string, signal: AbortSignal): Promise<GuestUser> {
  try {
    return await agent.lookupUser(user, signal);
  } catch (caught) {
    const error = PlatformError.fromUnknown(caught);
    if (error.details.status !== 'UNKNOWN_USER' && error.code !== 'invalid_argument') throw error;
    throw new PlatformError('unauthenticated', `invalid username: '${user}'`, { cause: error });
  }
}
