import { AsyncLocalStorage } from 'node:async_hooks';
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { type Clock, parseTraceparent, type Rng } from '@agentenv/core';

/** What every line of the log about a request says. */
export interface RequestContext {
  /** Answered as `x-request-id`: what the client chose, if it is sane, or one of ours. */
  readonly requestId: string;
  /** Present if the request belongs to a trace (W3C Trace Context). */
  readonly traceId?: string;
  /** Ours in that trace. */
  readonly spanId?: string;
  /** The caller's in that trace. */
  readonly parentSpanId?: string;
}

/**
 * Which request is being worked on. It follows the request over every `await`, so that whatever writes to the log on its
 * way says for whom, without each part having to be told.
 */
export interface RequestContexts {
  /** The context of a request: made when it is first asked for. */
  of(request: IncomingMessage): RequestContext;
  run<T>(context: RequestContext, work: () => T): T;
  /** Runs what is nobody's request: timers, and whatever they start. */
  outside<T>(work: () => T): T;
  current(): RequestContext | undefined;
}

/** What a client may choose as its request id; anything else is replaced by one of ours. */
const REQUEST_ID = /^[\w.-]{1,64}$/;
const PREFIX_BYTES = 6;
const SPAN_BYTES = 8;

export function createRequestContexts(rng: Rng): RequestContexts {
  const storage = new AsyncLocalStorage<RequestContext | undefined>();
  const known = new WeakMap<IncomingMessage, RequestContext>();
  // Ids that are unique over restarts without a random number per request.
  const prefix = rng.bytes(PREFIX_BYTES).toHex();
  let count = 0;

  function begin({ headers }: { readonly headers: IncomingHttpHeaders }): RequestContext {
    const given = headers['x-request-id'];
    const requestId =
      typeof given === 'string' && REQUEST_ID.test(given) ? given : `${prefix}-${(++count).toString(36)}`;
    const { traceparent } = headers;
    const trace = parseTraceparent(typeof traceparent === 'string' ? traceparent : undefined);
    if (trace === undefined) return { requestId };
    return {
      requestId,
      traceId: trace.traceId,
      spanId: rng.bytes(SPAN_BYTES).toHex(),
      parentSpanId: trace.parentId,
    };
  }

  return {
    of(request) {
      let context = known.get(request);
      if (context === undefined) {
        context = begin(request);
        known.set(request, context);
      }
      return context;
    },
    run: (context, work) => storage.run(context, work),
    outside: (work) => storage.run(undefined, work),
    current: () => storage.getStore(),
  };
}

/** A clock whose timers are nobody's request: what happens later must not be told as the doing of whoever armed it. */
export function outsideRequests(clock: Clock, contexts: RequestContexts): Clock {
  return {
    now: () => clock.now(),
    monotonic: () => clock.monotonic(),
    timer: (milliseconds, callback) => clock.timer(milliseconds, () => contexts.outside(callback)),
  };
}
