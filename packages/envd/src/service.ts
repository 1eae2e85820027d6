import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Agent } from '@agentenv/agent';
import { type Clock, type Log, PlatformError } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';
import { Filesystem } from '@agentenv/protocol/filesystem';
import { Process } from '@agentenv/protocol/process';
import { authoriseFileRequest } from './files/authorise.ts';
import { downloadFile } from './files/download.ts';
import type { FilesContext } from './files/files-context.ts';
import { uploadFiles } from './files/upload.ts';
import { createFilesystemService } from './filesystem/filesystem-service.ts';
import { constantTimeEqual } from './http/access.ts';
import { limitUnreadBody, sendError, sendJson } from './http/answer.ts';
import { answerPreflight, applyCors } from './http/cors.ts';
import { createOpenAnswers, resetConnection } from './http/open-answers.ts';
import { signalOfAnswer } from './http/signals.ts';
import { createProcessService } from './process/process-service.ts';
import { createProcessTable } from './process/process-table.ts';
import { createRpcAdapter } from './rpc/adapter.ts';
import { lookupRpcUser } from './rpc/rpc-user.ts';
import { identityVariables } from './system/environment.ts';
import { metricsBody } from './system/metrics.ts';

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
 * When the agent's channel ends, or the service is disposed, open connections are reset and `/health` answers 502.
 */
export interface EnvdService extends AsyncDisposable {
  handle(request: IncomingMessage, response: ServerResponse): void;
}

type Handler = (request: IncomingMessage, response: ServerResponse, query: URLSearchParams) => Promise<void> | void;

interface Route {
  readonly methods: Readonly<Record<string, Handler>>;
  /** `token`: only with the access token · `own`: the handlers decide · `none`: for everybody. */
  readonly access: 'token' | 'own' | 'none';
}

/** Paths of this API that are not built into this server. */
const NOT_BUILT = ['/files/compose'];

const UNAUTHORIZED = 'unauthorized access, please provide a valid access token or method signing if supported';

export function createEnvd(options: EnvdOptions): EnvdService {
  const { agent, clock, accessToken, sandboxId, defaultUser, defaultWorkdir } = options;
  const log = options.log.child({ sandboxId });
  const open = createOpenAnswers();
  const table = createProcessTable({ agent, clock, log });
  const files: FilesContext = options;
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
      router.service(Filesystem, createFilesystemService({ agent, defaultUser, defaultWorkdir }));
    },
  });

  const download: Handler = (request, response, query) => {
    authoriseFileRequest('read', header(request, HEADERS.accessToken), query, files);
    return downloadFile(request, response, query, files);
  };
  const health: Handler = (_request, response) => {
    response.writeHead(204).end();
  };
  const metrics: Handler = async (_request, response) => {
    sendJson(response, 200, metricsBody(await agent.metrics(signalOfAnswer(response)), clock.now()));
  };
  const environment: Handler = (_request, response) => {
    response.setHeader('Cache-Control', 'no-store');
    sendJson(response, 200, { ...options.envVars, ...identityVariables(options) });
  };
  const routes = new Map<string, Route>([
    ['/health', { access: 'none', methods: { GET: health, HEAD: health } }],
    ['/metrics', { access: 'token', methods: { GET: metrics } }],
    ['/envs', { access: 'token', methods: { GET: environment } }],
    [
      '/files',
      {
        access: 'own',
        methods: {
          GET: download,
          HEAD: download,
          POST(request, response, query) {
            authoriseFileRequest('write', header(request, HEADERS.accessToken), query, files);
            return uploadFiles(request, response, query, files);
          },
        },
      },
    ],
  ]);

  /** Everything the service holds ends: no answer is finished, because its sandbox is not there to finish it. */
  function end(): void {
    if (gone) return;
    gone = true;
    open.reset();
    table[Symbol.dispose]();
  }
  void agent.closed.then(end, end);

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (gone) {
      sendJson(response, 502, { sandboxId, message: 'The sandbox was not found', code: 502 });
      return;
    }
    applyCors(request, response);
    if (answerPreflight(request, response)) return;

    const [path = '', search = ''] = split(request.url ?? '');
    const route = routes.get(path);
    if (route?.access !== 'none' && route?.access !== 'own') requireToken(request);

    if (route !== undefined) {
      const handler = route.methods[request.method ?? ''];
      if (handler === undefined) {
        response.setHeader('Allow', Object.keys(route.methods).join(', '));
        throw new PlatformError('method_not_allowed', `method ${request.method ?? ''} is not allowed for ${path}`);
      }
      await handler(request, response, new URLSearchParams(search));
      return;
    }
    const call = rpc.find(path);
    if (call !== undefined) {
      await call(request, response);
      return;
    }
    if (NOT_BUILT.includes(path)) throw new PlatformError('not_implemented', `${path} is not implemented`);
    throw new PlatformError('not_found', `no such path: ${path}`);
  }

  function requireToken(request: IncomingMessage): void {
    if (accessToken === undefined) return;
    const given = header(request, HEADERS.accessToken);
    if (given === undefined || !constantTimeEqual(given, accessToken)) {
      throw new PlatformError('unauthenticated', UNAUTHORIZED);
    }
  }

  return {
    handle(request, response) {
      open.add(response);
      limitUnreadBody(request, response, clock);
      answer(request, response).catch((caught: unknown) => {
        const error = PlatformError.fromUnknown(caught);
        if (error.code === 'sandbox_unavailable') {
          resetConnection(response);
          return;
        }
        if (error.code === 'internal') log.error({ err: error, path: split(request.url ?? '')[0] }, 'a request failed');
        sendError(response, error);
      });
    },
    async [Symbol.asyncDispose]() {
      end();
    },
  };
}

function split(url: string): readonly [path: string, search: string] {
  const mark = url.indexOf('?');
  return mark < 0 ? [url, ''] : [url.slice(0, mark), url.slice(mark + 1)];
}

function header(request: IncomingMessage, name: string): string | undefined {
  const value = request.headers[name];
  return Array.isArray(value) ? value.join(', ') : value;
}
