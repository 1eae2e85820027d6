import { isUtf8 } from 'node:buffer';
import { isWholeText, PlatformError, shorten } from '@agentenv/core';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { Operation } from './document.ts';

/** Longest body of a control-plane request, bytes. */
export const BODY_LIMIT = 1024 * 1024;

const HALF_CHARACTER = 'the body escapes half a character (an unpaired surrogate)';
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
  app.addContentTypeParser<Buffer>('*', { parseAs: 'buffer', bodyLimit: BODY_LIMIT }, (request, bytes, done) => {
    const body = operationOf(request)?.body;
    if (body === undefined || /^[\t\n\r ]*$/.test(bytes.toString('latin1'))) {
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
    if (!isUtf8(bytes)) {
      done(new PlatformError('invalid_argument', 'the body is not valid UTF-8'));
      return;
    }
    void parseJson(request, bytes.toString('utf8'), (error, value) => {
      if (error === null && !isWholeText(value)) done(new PlatformError('invalid_argument', HALF_CHARACTER));
      else if (error === null) done(null, value);
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
