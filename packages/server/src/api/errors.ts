import { type Log, PlatformError } from '@agentenv/core';
import type { ErrorCode } from '@agentenv/protocol';
import type { components } from '@agentenv/protocol/control-plane';
import type { FastifyReply } from 'fastify';

export type ErrorBody = components['schemas']['Error'];

/** The body of an error answer; `code` equals the status (contract e2b.md section 3). */
export function errorBody(error: PlatformError): ErrorBody {
  const { http, errorCode } = error.mapping;
  return { code: http, message: error.message, ...(errorCode === undefined ? {} : { error_code: errorCode }) };
}

/** `Retry-After` of a refusal for a while that does not know better, seconds. */
const DEFAULT_RETRY_AFTER_SECONDS = 5;
const REFUSALS_FOR_A_WHILE: ReadonlySet<ErrorCode> = new Set(['capacity', 'unavailable']);

/** Answers with `error` and its headers. */
export function sendError(reply: FastifyReply, error: PlatformError): FastifyReply {
  const fallback = REFUSALS_FOR_A_WHILE.has(error.code) ? DEFAULT_RETRY_AFTER_SECONDS : undefined;
  const wait = error.retryAfterSeconds ?? fallback;
  if (wait !== undefined) reply.header('retry-after', String(Math.max(1, Math.ceil(wait))));
  return reply.code(error.mapping.http).type('application/json; charset=utf-8').send(errorBody(error));
}

/** Lets the connection end with this answer; one of HTTP/2 belongs to other requests as well. */
export function closeAfter(reply: FastifyReply): FastifyReply {
  return reply.request.raw.httpVersionMajor === 1 ? reply.header('connection', 'close') : reply;
}

/** Status of a framework error → the code of ours with that meaning. 415 and 422 are 400 here (agentenv.md section 1). */
const FRAMEWORK_STATUS: ReadonlyMap<number, ErrorCode> = new Map([
  [400, 'invalid_argument'],
  [404, 'not_found'],
  [408, 'request_timeout'],
  [413, 'payload_too_large'],
  [414, 'invalid_argument'],
  [415, 'invalid_argument'],
  [422, 'invalid_argument'],
  [431, 'header_too_large'],
  [503, 'unavailable'],
]);

/** Longest message of the framework that is passed on, characters: some repeat what the client sent. */
const MAX_MESSAGE = 200;

/** Turns whatever a route or the framework threw into a PlatformError; only client errors keep their message. */
export function toPlatformError(caught: unknown): PlatformError {
  if (caught instanceof Error && 'statusCode' in caught && !(caught instanceof PlatformError)) {
    const code = FRAMEWORK_STATUS.get(Number(caught.statusCode));
    if (code !== undefined) return new PlatformError(code, caught.message.slice(0, MAX_MESSAGE), { cause: caught });
  }
  return PlatformError.fromUnknown(caught);
}

export function clientGone(cause: unknown): PlatformError {
  return new PlatformError('canceled', 'the client went away', { cause });
}

/** Writes what happened at the level it deserves: our own faults as errors with their cause, the rest at debug. */
export function logError(log: Log, error: PlatformError, about: { readonly route: string }): void {
  const fields = { ...about, code: error.code, status: error.mapping.http, details: error.details };
  if (isRefusal(error) || LOGGED_BEFORE.has(error.code)) log.debug(fields, error.message);
  else log.error({ ...fields, err: error.cause ?? error }, error.message);
}

/** Logged where they happen, with the sandbox and the stage. */
const LOGGED_BEFORE: ReadonlySet<ErrorCode> = new Set(['create_failed']);

/** A mistake of the client, something that is not built, or a server that says when to come back: nobody's fault here. */
function isRefusal(error: PlatformError): boolean {
  return error.mapping.http < 500 || error.code === 'not_implemented' || error.retryAfterSeconds !== undefined;
}
