import { PlatformError, shorten } from '@agentenv/core';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { Operation } from './document.ts';

/** Longest body of a control-plane request, bytes. */
export const BODY_LIMIT = 1024 * 1024;

const JSON_TYPE = /^application\/(?:[\w.-]+\+)?json$/i;

/**
 * Reads bodies by the rules of the contract (e2b.md section 3): chunked or not, and where the document says that a
 * body is optional it may be absent, empty or `null`, whatever its content type. Operations without one ignore it.
 */
export function registerBodyParser(
  app: FastifyInstance,
  operationOf: (request: FastifyRequest) => Operation | undefined,
) {
  const parseJson = app.getDefaultJsonParser('error', 'error');
  app.removeAllContentTypeParsers();
  app.addContentTypeParser<string>('*', { parseAs: 'string', bodyLimit: BODY_LIMIT }, (request, text, done) => {
    const body = operationOf(request)?.body;
    if (body === undefined || text.trim() === '') {
      done(null, undefined);
      return;
    }
    const encoding = request.headers['content-encoding'] ?? 'identity';
    if (encoding.toLowerCase() !== 'identity') {
      done(new PlatformError('invalid_argument', `content-encoding: ${shorten(encoding, 32)} is not supported`));
      return;
    }
    if (!JSON_TYPE.test(mediaType(request.headers['content-type']))) {
      done(new PlatformError('invalid_argument', 'the content type of the body must be application/json'));
      return;
    }
    void parseJson(request, text, (error, value) => {
      if (error === null) done(null, value);
      else done(new PlatformError('invalid_argument', 'the body is not valid JSON', { cause: error }));
    });
  });
}

/** Replaces an absent or null optional body by `{}`; refuses a missing required one. */
export function settleBody(request: FastifyRequest, operation: Operation): void {
  if (request.body !== undefined && request.body !== null) return;
  if (operation.body?.required === true) throw new PlatformError('invalid_argument', 'a JSON body is required');
  request.body = {};
}

function mediaType(header: string | undefined): string {
  return (header ?? '').split(';', 1)[0]?.trim() ?? '';
}
