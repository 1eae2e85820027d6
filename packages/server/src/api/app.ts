import type { Clock, Log } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';
import cors from '@fastify/cors';
import { type FastifyInstance, type FastifyRequest, fastify } from 'fastify';
import type { EventStreams } from '../events/event-stream.ts';
import type { HttpMetrics } from '../observability/metrics.ts';
import type { RequestContexts } from '../observability/request-context.ts';
import type { SandboxLogs } from '../observability/sandbox-logs.ts';
import type { SandboxMetrics } from '../observability/sandbox-metrics.ts';
import type { Orchestrator } from '../orchestrator/orchestrator.ts';
import type { DataPlane } from '../proxy/data-plane.ts';
import { createAuthentication } from './authentication.ts';
import { registerBodyParser } from './body.ts';
import { loadControlPlane, type Operation } from './document.ts';
import { createDrain } from './drain.ts';
import { clientGone, logError, sendError, toPlatformError } from './errors.ts';
import { createEventHandlers } from './event-handlers.ts';
import { createHttpServer, type ListenerLimits } from './http-server.ts';
import { createInstallationHandlers, type Installation } from './installation-handlers.ts';
import { createLogHandlers } from './log-handlers.ts';
import { createMetricsHandlers } from './metrics-handlers.ts';
import { createNotFound } from './not-found.ts';
import { createRequestObserver } from './request-observer.ts';
import { registerRoutes } from './routes.ts';
import { createSandboxHandlers } from './sandbox-handlers.ts';
import type { TimeoutRules } from './sandbox-requests.ts';
import { createSnapshotHandlers, type SnapshotReader } from './snapshot-handlers.ts';
import { createSystemHandlers } from './system-handlers.ts';
import { createTemplateHandlers, type TemplateReader } from './template-handlers.ts';
import { createValidator } from './validation.ts';

export interface AppDependencies {
  readonly orchestrator: Orchestrator;
  readonly templates: TemplateReader;
  readonly snapshots: SnapshotReader;
  readonly sandboxMetrics: Pick<SandboxMetrics, 'range' | 'newest'>;
  readonly sandboxLogs: Pick<SandboxLogs, 'read'>;
  readonly eventStreams: Pick<EventStreams, 'open'>;
  readonly installation: Omit<Installation, 'apiKey'>;
  readonly apiKey: string;
  readonly timeouts: TimeoutRules;
  /** First of the configured sandbox domains. */
  readonly domain: string | undefined;
  /** False while sandboxes cannot be created yet: `/health` answers 503. */
  readonly isReady: () => boolean;
  readonly metrics: HttpMetrics;
  readonly renderMetrics: () => Promise<{ readonly text: string; readonly contentType: string }>;
  /** Takes requests for sandboxes before any route of the control plane is looked at. */
  readonly dataPlane: DataPlane;
  readonly contexts: RequestContexts;
  /** Those of production unless given. */
  readonly listenerLimits?: ListenerLimits;
  readonly clock: Clock;
  readonly log: Log;
}

/** Longest path parameter, characters, percent-encoded. */
const MAX_PARAMETER = 1024;

export interface ControlPlane {
  /** Ready to listen or to be injected into. */
  readonly app: FastifyInstance;
  /** Refuses new requests of the control plane from now on; resolves once none is under way. */
  drain(): Promise<void>;
}

/** The control plane as an application, with the data plane in front of it. */
export async function createApp(deps: AppDependencies): Promise<ControlPlane> {
  const operations = loadControlPlane();
  const drain = createDrain();
  const { contexts } = deps;
  const observer = createRequestObserver({ ...deps, operationOf });
  const app = fastify({
    logger: false,
    genReqId: (request) => contexts.of(request).requestId,
    routerOptions: { maxParamLength: MAX_PARAMETER },
    // Its answer would not be one of ours; see createDrain.
    return503OnClosing: false,
    // The server answers them itself; the handler that is the default would destroy their connections under the answer.
    clientErrorHandler: () => undefined,
    serverFactory: (handler) =>
      createHttpServer(inContext(contexts, deps.dataPlane), drain.count(handler), {
        clock: deps.clock,
        ...(deps.listenerLimits === undefined ? {} : { limits: deps.listenerLimits }),
      }),
    frameworkErrors: (error, request, reply) => {
      // Paths that cannot be decoded never reach a route.
      observer.begin(request, reply);
      sendError(reply, toPlatformError(error));
    },
  });

  observer.watch(app);
  await app.register(cors, {
    origin: '*',
    methods: ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE'],
    exposedHeaders: [HEADERS.nextToken, HEADERS.totalRunning, HEADERS.retryAfter],
    maxAge: 7200,
    // OPTIONS of somebody who is no browser is answered too.
    strictPreflight: false,
  });
  registerBodyParser(app, operationOf);
  drain.guard(app, operationOf);
  registerErrors(app, operations, deps);
  registerRoutes(app, {
    operations,
    handlers: {
      ...createSystemHandlers(deps),
      ...createSandboxHandlers(deps),
      ...createTemplateHandlers(deps),
      ...createSnapshotHandlers(deps),
      ...createMetricsHandlers(deps),
      ...createLogHandlers(deps),
      ...createEventHandlers(deps),
      ...createInstallationHandlers({ ...deps.installation, apiKey: deps.apiKey }),
    },
    validator: createValidator(),
    authenticate: createAuthentication(deps.apiKey),
    contexts,
    clock: deps.clock,
    log: deps.log,
  });
  await app.ready();
  return { app, drain: () => drain.begin() };
}

/** The data plane, with every request worked on in its own context. */
function inContext(contexts: RequestContexts, dataPlane: DataPlane): DataPlane {
  return {
    ...dataPlane,
    handle: (request, response) => contexts.run(contexts.of(request), () => dataPlane.handle(request, response)),
    upgrade: (request, socket, early) =>
      contexts.run(contexts.of(request), () => dataPlane.upgrade(request, socket, early)),
  };
}

function registerErrors(
  app: FastifyInstance,
  operations: readonly Operation[],
  { log, contexts }: Pick<AppDependencies, 'log' | 'contexts'>,
): void {
  const notFound = createNotFound(operations);
  app.addHook('onRequest', (request, reply, done) => {
    // Answered before a body is read: nobody is going to look at it.
    done(request.is404 ? notFound(request, reply) : undefined);
  });
  app.setNotFoundHandler((request, reply) => sendError(reply, notFound(request, reply)));
  app.setErrorHandler((caught, request, reply) => {
    // Whatever else is wrong with a request of which the rest will never come.
    const error = reply.raw.destroyed ? clientGone(caught) : toPlatformError(caught);
    logError(log, error, { ...contexts.of(request.raw), route: operationOf(request)?.path ?? 'unmatched' });
    return sendError(reply, error);
  });
}

function operationOf(request: FastifyRequest): Operation | undefined {
  return request.routeOptions.config.operation;
}
