import { randomBytes } from 'node:crypto';
import type { RequestListener } from 'node:http';
import { type Clock, type Log, PlatformError } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';
import cors from '@fastify/cors';
import { type FastifyInstance, type FastifyRequest, fastify } from 'fastify';
import type { HttpMetrics } from '../observability/metrics.ts';
import type { Orchestrator } from '../orchestrator/orchestrator.ts';
import type { DataPlane } from '../proxy/data-plane.ts';
import { createAuthentication } from './authentication.ts';
import { registerBodyParser } from './body.ts';
import { loadControlPlane, type Operation } from './document.ts';
import { logError, sendError, toPlatformError } from './errors.ts';
import { createHttpServer } from './http-server.ts';
import { createNotFound } from './not-found.ts';
import { registerRoutes } from './routes.ts';
import { createSandboxHandlers } from './sandbox-handlers.ts';
import type { TimeoutRules } from './sandbox-requests.ts';
import { createSystemHandlers } from './system-handlers.ts';
import { createTemplateHandlers, type TemplateReader } from './template-handlers.ts';
import { createValidator } from './validation.ts';

export interface AppDependencies {
  readonly orchestrator: Orchestrator;
  readonly templates: TemplateReader;
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
  readonly clock: Clock;
  readonly log: Log;
}

/** Longest path parameter, characters, percent-encoded. */
const MAX_PARAMETER = 1024;

/** What a client may choose as its request id; anything else is replaced by one of ours. */
const REQUEST_ID = /^[\w.-]{1,64}$/;

export interface ControlPlane {
  /** Ready to listen or to be injected into. */
  readonly app: FastifyInstance;
  /** Resolves once no request of the control plane is under way. */
  idle(): Promise<void>;
}

/** The control plane as an application, with the data plane in front of it. */
export async function createApp(deps: AppDependencies): Promise<ControlPlane> {
  const operations = loadControlPlane();
  const inflight = createInflight();
  const app = fastify({
    logger: false,
    genReqId: createRequestIds(),
    routerOptions: { maxParamLength: MAX_PARAMETER },
    // Its answer would not be one of ours; see refuseWhileClosing.
    return503OnClosing: false,
    serverFactory: (handler) => createHttpServer(deps.dataPlane, inflight.count(handler)),
    frameworkErrors: (error, _request, reply) => {
      // Paths that cannot be decoded never reach a route.
      sendError(reply, toPlatformError(error));
    },
  });

  await app.register(cors, {
    origin: '*',
    methods: ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE'],
    exposedHeaders: [HEADERS.nextToken, HEADERS.totalRunning, HEADERS.retryAfter],
    maxAge: 7200,
    // OPTIONS of somebody who is no browser is answered too.
    strictPreflight: false,
  });
  registerBodyParser(app, operationOf);
  refuseWhileClosing(app);
  registerErrors(app, operations, deps.log);
  app.addHook('onResponse', (request, reply, done) => {
    const operation = operationOf(request);
    // Scrapes are not measured (agentenv.md section 18).
    if (operation?.id !== 'getMetrics') {
      deps.metrics.observe(
        request.method,
        operation?.path ?? 'unmatched',
        'control_plane',
        reply.statusCode,
        reply.elapsedTime / 1000,
      );
    }
    done();
  });
  registerRoutes(app, {
    operations,
    handlers: {
      ...createSystemHandlers(deps),
      ...createSandboxHandlers(deps),
      ...createTemplateHandlers(deps.templates),
    },
    validator: createValidator(),
    authenticate: createAuthentication(deps.apiKey),
    clock: deps.clock,
    log: deps.log,
  });
  await app.ready();
  return { app, idle: () => inflight.idle() };
}

/** Counts requests from their arrival to the end of their answer. */
function createInflight() {
  let requests = 0;
  let waiting: PromiseWithResolvers<void> | undefined;
  return {
    count:
      (listener: RequestListener): RequestListener =>
      (request, response) => {
        requests++;
        response.once('close', () => {
          if (--requests === 0) waiting?.resolve();
        });
        listener(request, response);
      },
    async idle(): Promise<void> {
      if (requests === 0) return;
      waiting ??= Promise.withResolvers();
      await waiting.promise;
    },
  };
}

/** Connections that are kept alive outlast the listener: what comes on them while the server ends is refused. */
function refuseWhileClosing(app: FastifyInstance): void {
  let closing = false;
  app.addHook('preClose', (done) => {
    closing = true;
    done();
  });
  app.addHook('onRequest', (_request, _reply, done) => {
    done(
      closing ? new PlatformError('unavailable', 'the server is shutting down', { retryAfterSeconds: 5 }) : undefined,
    );
  });
}

function registerErrors(app: FastifyInstance, operations: readonly Operation[], log: Log): void {
  const notFound = createNotFound(operations);
  app.addHook('onRequest', (request, reply, done) => {
    reply.header('x-request-id', request.id);
    // Answered before a body is read: nobody is going to look at it.
    done(request.is404 ? notFound(request, reply) : undefined);
  });
  app.setNotFoundHandler((request, reply) => sendError(reply, notFound(request, reply)));
  app.setErrorHandler((caught, request, reply) => {
    const error = toPlatformError(caught);
    logError(log, error, operationOf(request)?.path ?? 'unmatched');
    return sendError(reply, error);
  });
}

function operationOf(request: FastifyRequest): Operation | undefined {
  return request.routeOptions.config.operation;
}

/** Ids that are unique over restarts without a random number per request. */
function createRequestIds(): (request: { headers: Record<string, unknown> }) => string {
  const prefix = randomBytes(6).toString('hex');
  let count = 0;
  return ({ headers }) => {
    const given = headers['x-request-id'];
    return typeof given === 'string' && REQUEST_ID.test(given) ? given : `${prefix}-${(++count).toString(36)}`;
  };
}
