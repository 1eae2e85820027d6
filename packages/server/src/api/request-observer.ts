import type { ServerResponse } from 'node:http';
import type { Clock, Log } from '@agentenv/core';
import { ERROR_CATALOGUE, HEADERS } from '@agentenv/protocol';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { HttpMetrics } from '../observability/metrics.ts';
import type { RequestContexts } from '../observability/request-context.ts';
import type { Operation } from './document.ts';

export interface RequestObserverDependencies {
  readonly contexts: RequestContexts;
  readonly metrics: HttpMetrics;
  readonly clock: Clock;
  readonly log: Log;
  readonly operationOf: (request: FastifyRequest) => Operation | undefined;
}

/** Label of requests no operation takes. */
const UNMATCHED = 'unmatched';
/** Status of a request whose client did not wait for the whole answer; nobody gets to see it. */
const CLIENT_GONE = ERROR_CATALOGUE.canceled.http;
/** From this size on an answer does not fit into the buffers of a connection, bytes. */
const LARGE_ANSWER = 64 * 1024;
/** How long a client may take to read a large answer, milliseconds. */
const READ_DEADLINE_MS = 60_000;

/**
 * Gives every request its id, measures it and writes a line about it when the connection is done with it: 499 if the
 * client went away before it had the whole answer. What was asked is told by method and route alone, never by path or
 * query. Changes are worth a line, reads are not.
 */
export interface RequestObserver {
  /** Observes every request of `app` that reaches its hooks; to be called before any other hook is added. */
  watch(app: FastifyInstance): void;
  /** Observes a request that does not. */
  begin(request: FastifyRequest, reply: FastifyReply): void;
}

export function createRequestObserver(deps: RequestObserverDependencies): RequestObserver {
  const { contexts, metrics, clock, log, operationOf } = deps;

  function begin(request: FastifyRequest, reply: FastifyReply): void {
    const context = contexts.of(request.raw);
    reply.header(HEADERS.requestId, context.requestId);
    const arrivedAt = clock.monotonic();
    afterAnswer(reply.raw, (complete) => {
      const operation = operationOf(request);
      const status = complete ? reply.statusCode : CLIENT_GONE;
      const seconds = (clock.monotonic() - arrivedAt) / 1000;
      const route = operation?.path ?? UNMATCHED;
      // Scrapes are not measured (agentenv.md section 18).
      if (operation?.id !== 'getMetrics') {
        metrics.observe(request.method, route, 'control_plane', status, seconds, operation?.id ?? UNMATCHED);
      }
      const about = status < 400 ? sandboxOf(request, reply) : {};
      const fields = { ...context, ...about, method: request.method, route, status, ms: Math.round(seconds * 1000) };
      if (status === CLIENT_GONE) log.info(fields, 'the client went away');
      else if (request.method === 'GET' || status >= 400) log.debug(fields, 'request');
      else log.info(fields, 'request');
    });
  }

  return {
    begin,
    watch(app) {
      app.addHook('onRequest', (request, reply, done) => {
        begin(request, reply);
        done();
      });
      app.addHook('onSend', (_request, reply, payload, done) => {
        if (typeof payload === 'string' && payload.length > LARGE_ANSWER) limitReadTime(reply.raw, clock);
        done();
      });
    },
  };
}

/** The sandbox a request that succeeded was about: what a client only says is not written down. */
function sandboxOf(request: FastifyRequest, reply: FastifyReply): { readonly sandboxId?: string } {
  const { sandboxID } = (request.params ?? {}) as { readonly sandboxID?: string };
  const created = reply.getHeader(HEADERS.agentenvSandboxId);
  const sandboxId = sandboxID ?? (typeof created === 'string' ? created : undefined);
  return sandboxId === undefined ? {} : { sandboxId };
}

/** Calls once when nothing more will be sent; `complete`: everything was handed to the connection. */
function afterAnswer(response: ServerResponse, call: (complete: boolean) => void): void {
  let complete = false;
  response.once('finish', () => {
    complete = true;
  });
  response.once('close', () => call(complete));
}

/** An answer nobody reads would be kept in memory for ever. */
function limitReadTime(response: ServerResponse, clock: Clock): void {
  const deadline = clock.timer(READ_DEADLINE_MS, () => response.destroy());
  response.once('close', () => deadline[Symbol.dispose]());
}
