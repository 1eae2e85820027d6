import { type Clock, type Log, PlatformError } from '@agentenv/core';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { RequestContexts } from '../observability/request-context.ts';
import type { Authenticate } from './authentication.ts';
import { settleBody } from './body.ts';
import type { Operation, Parameter, Schema } from './document.ts';
import { closeAfter, sendError } from './errors.ts';
import type { Handlers } from './operations.ts';
import type { Validate, Validator } from './validation.ts';

/** How long a client may take to send the body of a control-plane request, milliseconds. */
const BODY_DEADLINE_MS = 30_000;

declare module 'fastify' {
  interface FastifyContextConfig {
    operation?: Operation;
  }
}

export interface RouteDependencies {
  readonly operations: readonly Operation[];
  readonly handlers: Handlers;
  readonly validator: Validator;
  readonly authenticate: Authenticate;
  readonly contexts: RequestContexts;
  readonly clock: Clock;
  readonly log: Log;
}

interface AnyInput {
  readonly body: unknown;
  readonly path: unknown;
  readonly query: unknown;
  readonly header: unknown;
  readonly log: Log;
  readonly closed: AbortSignal;
}

type AnyHandler = (input: AnyInput) => unknown;

interface Answer {
  readonly status: number;
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Makes every operation of the document a route: key, then 501 or body, validation, handler, serialisation. */
export function registerRoutes(app: FastifyInstance, deps: RouteDependencies): void {
  for (const operation of deps.operations) {
    app.route({
      method: operation.method,
      url: operation.path.replaceAll(/\{(\w+)\}/g, ':$1'),
      config: { operation },
      ...(operation.built ? { schema: { response: Object.fromEntries(operation.responses) } } : {}),
      onRequest: (request, reply, done) => {
        if (operation.security.length > 0) deps.authenticate(request.headers, operation.security);
        if (!operation.built) {
          throw new PlatformError('not_implemented', `not implemented: ${operation.method} ${operation.path}`);
        }
        if (operation.body !== undefined) limitBodyTime(request, reply, deps.clock);
        done();
      },
      handler: createHandler(operation, deps),
    });
  }
}

/** A body that trickles in would hold the request for ever: the listener has no time limit of its own. */
function limitBodyTime(request: FastifyRequest, reply: FastifyReply, clock: Clock): void {
  const deadline = clock.timer(BODY_DEADLINE_MS, () => {
    if (reply.sent) return;
    sendError(closeAfter(reply), new PlatformError('request_timeout', 'the body did not arrive in time'));
  });
  const stop = (): void => deadline[Symbol.dispose]();
  request.raw.once('end', stop).once('close', stop);
}

function createHandler(operation: Operation, deps: RouteDependencies) {
  const handle = deps.handlers[operation.id as keyof Handlers] as AnyHandler | undefined;
  if (handle === undefined) {
    if (operation.built) throw new Error(`${operation.id} is built but has no handler`);
    return () => {
      throw new PlatformError('not_implemented', `not implemented: ${operation.method} ${operation.path}`);
    };
  }
  const { validator } = deps;
  const checkPath = compileParameters(validator, operation.pathParameters, 'path');
  const checkQuery = compileParameters(validator, operation.queryParameters, 'query');
  const checkHeaders = compileParameters(validator, operation.headerParameters, 'header');
  const checkBody = operation.body && validator.compile(operation.body.schema, 'body');

  return async (request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> => {
    checkPath?.(request.params);
    const query = checkQuery === undefined ? {} : readQuery(operation.queryParameters, request.query);
    checkQuery?.(query);
    const header = readHeaders(operation.headerParameters, request.headers);
    checkHeaders?.(header);
    if (checkBody !== undefined) {
      settleBody(request, operation);
      checkBody(request.body);
    }
    const input: AnyInput = {
      ...{ body: request.body, path: request.params, query, header, log: deps.log },
      // Most of them do not ask.
      get closed() {
        return closedSignal(reply);
      },
    };
    const answer = (await deps.contexts.run(deps.contexts.of(request.raw), () => handle(input))) as Answer;
    if (answer.headers !== undefined) reply.headers(answer.headers);
    return reply.code(answer.status).send(answer.body);
  };
}

function compileParameters(
  validator: Validator,
  parameters: readonly Parameter[],
  part: 'path' | 'query' | 'header',
): Validate | undefined {
  if (parameters.length === 0) return undefined;
  const schema: Schema = {
    type: 'object',
    properties: Object.fromEntries(parameters.map(({ name, schema }) => [name, schema])),
    required: parameters.filter(({ required }) => required).map(({ name }) => name),
  };
  return validator.compile(schema, part);
}

/** Aborts with the end of the answer, however it ends. */
function closedSignal(reply: FastifyReply): AbortSignal {
  const closed = new AbortController();
  reply.raw.once('close', () => closed.abort());
  if (reply.raw.destroyed) closed.abort();
  return closed.signal;
}

/** The known parameters among the headers; an empty one counts as not there. */
function readHeaders(parameters: readonly Parameter[], raw: FastifyRequest['headers']): Record<string, unknown> {
  const given = parameters.map(({ name }) => [name, raw[name.toLowerCase()]] as const);
  return Object.fromEntries(given.filter(([, value]) => value !== undefined && value !== ''));
}

/** The known parameters of a query; lists may be comma-joined or repeated (contract e2b.md T7), others given once. */
function readQuery(parameters: readonly Parameter[], raw: unknown): Record<string, unknown> {
  const given = raw as Readonly<Record<string, string | string[] | undefined>>;
  const query: Record<string, unknown> = {};
  for (const { name, schema } of parameters) {
    const value = given[name];
    if (value === undefined) continue;
    if (schema.type === 'array') {
      const items = [value].flat().flatMap((text) => text.split(',').filter((item) => item !== ''));
      if (items.length > 0) query[name] = items;
    } else if (Array.isArray(value)) {
      throw new PlatformError('invalid_argument', `${name} is given more than once`);
    } else {
      query[name] = value;
    }
  }
  return query;
}
