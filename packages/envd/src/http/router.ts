import type { IncomingMessage, ServerResponse } from 'node:http';
import { PlatformError } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';
import { constantTimeEqual } from './access.ts';
import { answerPreflight, applyCors } from './cors.ts';
import { parseQuery } from './query.ts';

export type Handler = (
  request: IncomingMessage,
  response: ServerResponse,
  query: URLSearchParams,
) => Promise<void> | void;

export interface Route {
  readonly methods: Readonly<Record<string, Handler>>;
  /** `token`: only with the access token · `own`: its handlers decide · `none`: for everybody. */
  readonly access: 'token' | 'own' | 'none';
}

export interface RouterOptions {
  readonly routes: ReadonlyMap<string, Route>;
  /** Paths that are no route; undefined when there is none either. */
  readonly fallback: (path: string) => Handler | undefined;
  /** undefined: nothing is guarded. */
  readonly accessToken: string | undefined;
}

const UNAUTHORIZED = 'unauthorized access, please provide a valid access token or method signing if supported';

/**
 * Finds and runs the handler of a request. What it throws is the answer: `unauthenticated` without the access token,
 * whatever the path (contract e2b.md section 8), `not_found` and `method_not_allowed`.
 */
export function createRouter({ routes, fallback, accessToken }: RouterOptions) {
  function requireToken(request: IncomingMessage): void {
    if (accessToken === undefined) return;
    const given = headerOf(request, HEADERS.accessToken);
    if (given === undefined || !constantTimeEqual(given, accessToken)) {
      throw new PlatformError('unauthenticated', UNAUTHORIZED);
    }
  }

  return async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    applyCors(request, response);
    if (answerPreflight(request, response)) return;

    const { path, query } = splitTarget(request);
    const route = routes.get(path);
    if (route === undefined || route.access === 'token') requireToken(request);

    const handler = route === undefined ? fallback(path) : route.methods[request.method ?? ''];
    if (handler !== undefined) {
      await handler(request, response, parseQuery(query));
      return;
    }
    if (route === undefined) throw new PlatformError('not_found', `no such path: ${path}`);
    response.setHeader('Allow', Object.keys(route.methods).join(', '));
    throw new PlatformError('method_not_allowed', `method ${request.method ?? ''} is not allowed for ${path}`);
  };
}

/** Path and query of a request as sent, nothing decoded. */
export function splitTarget({ url = '' }: IncomingMessage): { readonly path: string; readonly query: string } {
  const mark = url.indexOf('?');
  return mark < 0 ? { path: url, query: '' } : { path: url.slice(0, mark), query: url.slice(mark + 1) };
}

/** One header as one string. */
export function headerOf(request: IncomingMessage, name: string): string | undefined {
  const value = request.headers[name];
  return Array.isArray(value) ? value.join(', ') : value;
}
