import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Agent } from '@agentenv/agent';
import type { Clock, Log } from '@agentenv/core';

export interface EnvdOptions {
  readonly agent: Agent;
  readonly clock: Clock;
  readonly log: Log;
  readonly sandboxId: string;
  readonly templateId: string;
  /** undefined: the sandbox is not secure, nothing is guarded. */
  readonly accessToken: string | undefined;
  readonly defaultUser: string;
  readonly defaultWorkdir: string | undefined;
  readonly envVars: Readonly<Record<string, string>>;
}

/**
 * The E2B guest API (port 49983 of every sandbox) for one generation, answered on the host through the agent.
 * `handle` takes requests whose path is the guest path (`/health`, `/files`, `/process.Process/Start` …).
 */
export interface EnvdService extends AsyncDisposable {
  handle(request: IncomingMessage, response: ServerResponse): void;
}
