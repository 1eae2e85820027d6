import type { Agent, GuestUser } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';

const PASSED_ON: ReadonlySet<string> = new Set(['sandbox_unavailable', 'deadline_exceeded', 'canceled']);

/** The guest user a `/files` request acts as; an unknown one is `unauthenticated` (contract e2b.md section 8.2). */
export async function lookupFileUser(agent: Agent, user: string, signal: AbortSignal): Promise<GuestUser> {
  try {
    return await agent.lookupUser(user, signal);
  } catch (caught) {
    const error = PlatformError.fromUnknown(caught);
    if (PASSED_ON.has(error.code)) throw error;
    throw new PlatformError('unauthenticated', `error looking up user '${user}': ${error.message}`, { cause: error });
  }
}
