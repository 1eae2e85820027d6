import type { IncomingMessage } from 'node:http';
import { isPlatformId } from '@agentenv/core';
import { HEADERS } from '@agentenv/protocol';
import type { RouteSource } from '../observability/metrics.ts';

/** Whose answers a request gets: by E2B headers or host form the E2B ones, else those of agentenv.md section 15.4. */
export type Family = 'e2b' | 'agentenv';

/** What a request is, decided before any control-plane route is looked at (contract e2b.md section 7). */
export type Routing =
  | { readonly kind: 'control-plane' }
  | {
      readonly kind: 'sandbox';
      readonly family: Family;
      readonly source: Exclude<RouteSource, 'control_plane'>;
      readonly sandboxId: string;
      readonly port: number;
      /** Path and query as the sandbox sees them. */
      readonly url: string;
    }
  /** For the envd of whichever sandbox has this access token. */
  | { readonly kind: 'token'; readonly token: string; readonly url: string }
  | {
      readonly kind: 'bad';
      readonly family: Family;
      readonly source: Exclude<RouteSource, 'control_plane'>;
      readonly reason: string;
    };

const CONTROL_PLANE: Routing = { kind: 'control-plane' };
const PREFIX = '/proxy';
/** Ids are opaque to the data plane, but they are never longer and have no other characters. */
const SANDBOX_ID = /^[A-Za-z0-9_-]{1,128}$/;

export type RouteRequest = (request: IncomingMessage) => Routing;

/**
 * Routing by host form `{port}-{sandboxID}.{domain}` of a configured domain (of any if none is configured), then by
 * headers on every path or by the `/proxy` prefix, then by the envd token. The port a domain may carry is for clients;
 * whoever forwards to us may use another.
 */
export function createRouting(domains: readonly string[]): RouteRequest {
  const suffixes = domains.map((domain) => `.${hostName(domain)}`);
  return (request) => {
    const { url } = splitRequestLine(request);
    return (
      routeByHost(request, url, suffixes) ?? routeByHeaders(request, url) ?? routeByToken(request, url) ?? CONTROL_PLANE
    );
  };
}

/** The host a request names: in its request line, else by HTTP/2's `:authority`, else by `Host`; empty if in none. */
export function authorityOf(request: IncomingMessage): string {
  const { headers } = request;
  const pseudo = headers[':authority'];
  // RFC 9112 section 3.2.2: a host in the request line wins over the header.
  return splitRequestLine(request).authority ?? (typeof pseudo === 'string' ? pseudo : undefined) ?? headers.host ?? '';
}

function routeByHost(request: IncomingMessage, url: string, suffixes: readonly string[]): Routing | undefined {
  const host = hostName(authorityOf(request));
  if (suffixes.length === 0) return routeByAnyHost(host, url);
  const suffix = suffixes.find((candidate) => host.endsWith(candidate));
  if (suffix === undefined) return undefined;
  const label = host.slice(0, -suffix.length);
  // A dash is what tells a sandbox from other names of the domain, such as `api.`.
  if (!label.includes('-') || label.includes('.')) return undefined;
  const dash = label.indexOf('-');
  const port = parsePort(label.slice(0, dash));
  const sandboxId = label.slice(dash + 1);
  const bad = (reason: string): Routing => ({
    kind: 'bad',
    family: 'e2b',
    source: 'proxy_host',
    reason: `invalid sandbox data-plane host: ${reason}`,
  });
  if (port === undefined) return bad('the port in front of the first dash is not a port number');
  if (!SANDBOX_ID.test(sandboxId)) return bad('the sandbox id behind the first dash is not valid');
  return { kind: 'sandbox', family: 'e2b', source: 'proxy_host', sandboxId, port, url };
}

/** Without a domain a name has to speak for itself: other hosts have numbers and dashes in their names too. */
function routeByAnyHost(host: string, url: string): Routing | undefined {
  const [, digits = '', sandboxId = ''] = /^(\d+)-([^.]+)\.[^.]/.exec(host) ?? [];
  const port = parsePort(digits);
  if (port === undefined || !isPlatformId(sandboxId)) return undefined;
  return { kind: 'sandbox', family: 'e2b', source: 'proxy_host', sandboxId, port, url };
}

function routeByHeaders(request: IncomingMessage, url: string): Routing | undefined {
  const { headers } = request;
  const ownId = headers[HEADERS.agentenvSandboxId];
  const ownPort = headers[HEADERS.agentenvTargetPort];
  const id = ownId ?? headers[HEADERS.e2bSandboxId];
  const port = ownPort ?? headers[HEADERS.e2bSandboxPort];
  const prefixed = isPrefixed(url);
  if (id === undefined && port === undefined && !prefixed) return undefined;

  const family: Family = prefixed || ownId !== undefined || ownPort !== undefined ? 'agentenv' : 'e2b';
  const source = prefixed ? 'proxy_prefix' : 'proxy_header';
  const bad = (reason: string): Routing => ({ kind: 'bad', family, source, reason });
  if (id === undefined) return bad('missing sandbox routing header');
  if (typeof id !== 'string' || !SANDBOX_ID.test(id)) return bad('invalid sandbox routing header');
  if (port === undefined) return bad('missing target port routing header');
  const number = typeof port === 'string' ? parsePort(port) : undefined;
  if (number === undefined) return bad('invalid target port routing header');
  return { kind: 'sandbox', family, source, sandboxId: id, port: number, url: prefixed ? withoutPrefix(url) : url };
}

/**
 * Older clients (e2b 2.10) name the sandbox in their RPCs only; files and health come with nothing but its token. No
 * request of theirs to the control plane carries one.
 */
function routeByToken({ headers }: IncomingMessage, url: string): Routing | undefined {
  const token = headers[HEADERS.accessToken];
  if (typeof token !== 'string' || token === '' || headers[HEADERS.apiKey] !== undefined) return undefined;
  return { kind: 'token', token, url };
}

/** `Host` without port and trailing dot, lower-case. */
function hostName(host: string): string {
  return host.toLowerCase().replace(/:\d*$/, '').replace(/\.$/, '');
}

function parsePort(text: string): number | undefined {
  if (!/^[0-9]{1,5}$/.test(text)) return undefined;
  const port = Number(text);
  return port >= 1 && port <= 65_535 ? port : undefined;
}

function isPrefixed(url: string): boolean {
  return url.startsWith(PREFIX) && (url.length === PREFIX.length || '/?'.includes(url.charAt(PREFIX.length)));
}

function withoutPrefix(url: string): string {
  const rest = url.slice(PREFIX.length);
  return rest.startsWith('/') ? rest : `/${rest}`;
}

/** Path and query as sent; clients of forward proxies put scheme and host in front, `OPTIONS` may ask for `*`. */
function splitRequestLine({ url = '/' }: IncomingMessage): {
  readonly url: string;
  readonly authority: string | undefined;
} {
  if (url.startsWith('/') || url === '*') return { url, authority: undefined };
  const match = /^https?:\/\/([^/?]*)(.*)$/i.exec(url);
  const rest = match?.[2] ?? url;
  return { url: rest.startsWith('/') ? rest : `/${rest}`, authority: match?.[1] };
}
