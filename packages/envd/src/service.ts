import { randomBytes } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Agent } from '@agentenv/agent';
import { type Clock, type Log, PlatformError, type SandboxJournal } from '@agentenv/core';
import { Filesystem } from '@agentenv/protocol/filesystem';
import { Process } from '@agentenv/protocol/process';
import { createFilesystemService } from './filesystem/filesystem-service.ts';
import { createWatchService } from './filesystem/watch-service.ts';
import { sendError, sendJson } from './http/answer.ts';
import { applyCors } from './http/cors.ts';
import { serveInside } from './http/inside.ts';
import { limitUnreadBody } from './http/linger.ts';
import { createOpenAnswers, resetConnection } from './http/open-answers.ts';
import { createRouter, splitTarget } from './http/router.ts';
import { createProcessService } from './process/process-service.ts';
import { createProcessTable } from './process/process-table.ts';
import { createRoutes } from './routes.ts';
import { createRpcAdapter } from './rpc/adapter.ts';
import { lookupRpcUser } from './rpc/rpc-user.ts';

export interface EnvdOptions {
  readonly agent: Agent;
  readonly clock: Clock;
  readonly log: Log;
  /** What the owner of the sandbox gets to read: its processes as they start and end. */
  readonly journal: SandboxJournal;
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
 * `handle` takes requests whose path is the guest path (`/health`, `/files`, `/process.Process/Start` …); programs inside
 * the sandbox reach the same service on port 49983, with the same token.
 * When the agent's channel ends, or the service is disposed, open connections are reset and `/health` answers 502.
 */
export interface EnvdService extends AsyncDisposable {
  handle(request: IncomingMessage, response: ServerResponse): void;
}

export function createEnvd(options: EnvdOptions): EnvdService {
  const { agent, clock, sandboxId, defaultUser, defaultWorkdir } = options;
  const log = options.log.child({ sandboxId });
  const open = createOpenAnswers();
  const table = createProcessTable({ agent, clock, log, journal: options.journal });
  const { resolvePath, ...filesystem } = createFilesystemService({ agent, defaultUser, defaultWorkdir });
  const newWatcherId = (): string => `w${randomBytes(8).toString('hex')}`;
  const watches = createWatchService({ agent, clock, resolvePath, newWatcherId });
  let gone = false;

  const rpc = createRpcAdapter({
    clock,
    log,
    routes(router) {
      router.service(
        Process,
        createProcessService({
          clock,
          table,
          defaultUser,
          defaultWorkdir,
          globalEnv: options.envVars,
          sandboxId,
          templateId: options.templateId,
          homeOf: async (user, signal) => (await lookupRpcUser(agent, user, signal)).home,
        }),
      );
      router.service(Filesystem, { ...filesystem, ...watches.calls });
    },
  });

  const answer = createRouter({
    accessToken: options.accessToken,
    routes: createRoutes(options),
    fallback: (path) => rpc.find(path),
  });

  /** Everything the service holds ends: no answer is finished, because its sandbox is not there to finish it. */
  function end(): void {
    if (gone) return;
    gone = true;
    open.reset();
    table[Symbol.dispose]();
  }
  void agent.closed.then(end, end);

  function fail(request: IncomingMessage, response: ServerResponse, caught: unknown): void {
    const error = PlatformError.fromUnknown(caught);
    if (error.code === 'sandbox_unavailable') {
      resetConnection(response);
      return;
    }
    if (error.code === 'internal') log.error({ err: error, path: splitTarget(request).path }, 'a request failed');
    sendError(response, error);
  }

  function handle(request: IncomingMessage, response: ServerResponse): void {
    if (gone) {
      applyCors(request, response);
      sendJson(response, 502, { sandboxId, message: 'The sandbox was not found', code: 502 });
      return;
    }
    open.add(response);
    limitUnreadBody(request, response, clock);
    answer(request, response).catch((caught: unknown) => fail(request, response, caught));
  }

  const inside = serveInside({ agent, clock, log, handle });

  return {
    handle,
    async [Symbol.asyncDispose]() {
      end();
      await Promise.all([inside[Symbol.asyncDispose](), watches[Symbol.asyncDispose]()]);
    },
  };
}
