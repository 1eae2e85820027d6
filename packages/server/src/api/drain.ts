import type { RequestListener, ServerResponse } from 'node:http';
import { PlatformError } from '@agentenv/core';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { Operation } from './document.ts';
import { closeAfter } from './errors.ts';

/** Seconds after which a client may find the next server. */
const RETRY_AFTER_SECONDS = 5;

/** The end of the control plane: what is under way may finish, what still comes is refused. */
export interface Drain {
  /** Counts the requests a listener takes, from their arrival to the end of their answer; endless ones not for long. */
  count(listener: RequestListener): RequestListener;
  /** Lets `app` refuse requests once it begins. Scrapes go on to the end: that is when somebody wants to look. */
  guard(app: FastifyInstance, operationOf: (request: FastifyRequest) => Operation | undefined): void;
  /** Refuses new requests from now on; resolves once none is under way. */
  begin(): Promise<void>;
}

export function createDrain(): Drain {
  let draining = false;
  let requests = 0;
  let idle: PromiseWithResolvers<void> | undefined;
  const counted = new WeakSet<ServerResponse>();

  function discount(response: ServerResponse): void {
    if (counted.delete(response) && --requests === 0) idle?.resolve();
  }

  return {
    count: (listener) => (request, response) => {
      requests++;
      counted.add(response);
      response.once('close', () => discount(response));
      listener(request, response);
    },
    guard(app, operationOf) {
      app.addHook('preClose', (done) => {
        draining = true;
        done();
      });
      app.addHook('onRequest', (request, reply, done) => {
        const operation = operationOf(request);
        // Nobody can wait for its end.
        if (operation?.endless === true) discount(reply.raw);
        if (!draining || operation?.id === 'getMetrics') {
          done();
          return;
        }
        closeAfter(reply);
        const when = { retryAfterSeconds: RETRY_AFTER_SECONDS };
        done(new PlatformError('unavailable', 'the server is shutting down', when));
      });
    },
    async begin() {
      draining = true;
      if (requests === 0) return;
      idle ??= Promise.withResolvers();
      await idle.promise;
    },
  };
}
