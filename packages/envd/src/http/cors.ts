import type { IncomingMessage, ServerResponse } from 'node:http';
import { cors } from '@connectrpc/connect';

const METHODS = 'HEAD, GET, POST, PUT, PATCH, DELETE';
const MAX_AGE_SECONDS = '7200';
const EXPOSED = [...cors.exposedHeaders, 'Location', 'Cache-Control', 'X-Content-Type-Options'].join(', ');

/**
 * Adds the CORS headers of section 8 of contract e2b.md (any origin, any header) to the answer of a browser's request.
 * Credentials are never allowed, so `*` gives a page nothing that a plain client does not have.
 */
export function applyCors(request: IncomingMessage, response: ServerResponse): void {
  response.setHeader('Vary', 'Origin');
  if (request.headers.origin === undefined) return;
  response.setHeader('Access-Control-Allow-Origin', '*');
  response.setHeader('Access-Control-Expose-Headers', EXPOSED);
}

/** true: the request was a preflight and has been answered; it needs no token. */
export function answerPreflight(request: IncomingMessage, response: ServerResponse): boolean {
  if (request.method !== 'OPTIONS' || request.headers['access-control-request-method'] === undefined) return false;
  response.setHeader('Access-Control-Allow-Methods', METHODS);
  response.setHeader('Access-Control-Max-Age', MAX_AGE_SECONDS);
  // `*` would not cover Authorization, so what the browser asks for is named back to it.
  const headers = request.headers['access-control-request-headers'];
  if (headers !== undefined) response.setHeader('Access-Control-Allow-Headers', headers);
  response.appendHeader('Vary', 'Access-Control-Request-Method, Access-Control-Request-Headers');
  response.writeHead(204).end();
  return true;
}
