import type { Agent } from '@agentenv/agent';
import type { Clock } from '@agentenv/core';

/** What every file request needs to know of its sandbox. */
export interface FilesContext {
  readonly agent: Agent;
  readonly clock: Clock;
  readonly accessToken: string | undefined;
  readonly defaultUser: string;
  readonly defaultWorkdir: string | undefined;
}

/** Longest wait for one small answer of the guest, milliseconds. */
export const GUEST_CALL_MS = 30_000;
