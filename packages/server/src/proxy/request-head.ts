import type { IncomingMessage } from 'node:http';
import { HEADERS } from '@agentenv/protocol';
import { bearerToken } from '../secrets/bearer-token.ts';
import { equalsSecret } from '../secrets/equality.ts';
import { forEachHeader, HOP_BY_HOP, nominatedBy } from './header-fields.ts';
import { type PeerTrust, plainAddress } from './peer-trust.ts';
import { maskedHost } from './request-host.ts';
import { authorityOf, type Family } from './routing.ts';

/** What the head of a forwarded request depends on beside the request. */
export interface RequestHeadOptions {
  readonly family: Family;
  readonly port: number;
  /** Host the service gets to see instead of the real one; `${PORT}` stands for the port. */
  readonly maskRequestHost: string | undefined;
  /** Value of `Upgrade` when the connection is to become something else. */
  readonly upgrade: string | undefined;
  readonly trusts: PeerTrust;
  /** The key of the platform, which no sandbox gets to see. */
  readonly apiKey: string;
}

/** Meant for us and not for what runs in the sandbox. */
const INTERNAL: ReadonlySet<string> = new Set([
  HEADERS.e2bSandboxId,
  HEADERS.e2bSandboxPort,
  HEADERS.agentenvSandboxId,
  HEADERS.agentenvTargetPort,
  HEADERS.trafficAccessToken,
]);

/** What proxies tell of a request beside what we tell anew; only those that are trusted are believed. */
const TOLD_BY_PROXIES: ReadonlySet<string> = new Set(['x-real-ip', 'x-client-ip', 'x-cluster-client-ip']);
/** Made anew for every request. */
const FORWARDED: ReadonlySet<string> = new Set([
  'forwarded',
  'x-forwarded-for',
  'x-forwarded-host',
  'x-forwarded-proto',
  'x-forwarded-method',
  'x-forwarded-uri',
]);

/**
 * The headers of a request as the service in the sandbox gets them: those of the client in their order and spelling,
 * without what belongs to the connection or to the platform (agentenv.md section 15.3). The envd token is kept for E2B
 * clients, whose services use it (contract e2b.md section 12.2).
 */
export function requestHead(request: IncomingMessage, options: RequestHeadOptions): string[] {
  const { headers } = request;
  const nominated = nominatedBy(headers.connection);
  const believed = options.trusts(request.socket.remoteAddress);
  const head: string[] = ['Host', hostFor(request, options)];
  const cookies: string[] = [];
  forEachHeader(request.rawHeaders, (name, value, lower) => {
    if (lower === 'host' || HOP_BY_HOP.has(lower) || INTERNAL.has(lower) || FORWARDED.has(lower)) return;
    if (nominated.has(lower)) return;
    if (!believed && isToldByProxies(lower)) return;
    if (lower === HEADERS.accessToken && options.family === 'agentenv') return;
    if (carriesKey(lower, value, options.apiKey)) return;
    // A client of HTTP/1.0 does not wait for anybody's consent, and an upgrade has no body to consent to.
    if (lower === 'expect' && (request.httpVersion === '1.0' || options.upgrade !== undefined)) return;
    // Only a body in chunks has trailers.
    if (lower === 'trailer' && !hasChunks(request)) return;
    // HTTP/2 may cut cookies into several fields; HTTP/1 knows one.
    if (lower === 'cookie' && request.httpVersionMajor > 1) cookies.push(value);
    else head.push(name, value);
  });
  if (cookies.length > 0) head.push('cookie', cookies.join('; '));
  head.push(...framing(request), ...connection(request, options.upgrade), ...forwarded(request, options, believed));
  return head;
}

/** Whether a header is the key of the platform, in any of the ways its own routes take it. */
function carriesKey(lowerCaseName: string, value: string, apiKey: string): boolean {
  if (lowerCaseName === HEADERS.apiKey) return equalsSecret(value, apiKey);
  return lowerCaseName === 'authorization' && equalsSecret(bearerToken(value), apiKey);
}

/** Whether bytes follow the head. */
export function hasBody(request: IncomingMessage): boolean {
  if (request.httpVersionMajor > 1) return !streamEndsWithHead(request);
  const length = request.headers['content-length'];
  return request.headers['transfer-encoding'] !== undefined || (length !== undefined && Number(length) !== 0);
}

/** Whether the client waits for a `100 Continue` before it sends its body. */
export function expectsConsent({ headers, httpVersion }: IncomingMessage): boolean {
  return headers.expect !== undefined && httpVersion !== '1.0';
}

function hasChunks(request: IncomingMessage): boolean {
  if (request.httpVersionMajor > 1) return hasBody(request) && request.headers['content-length'] === undefined;
  return request.headers['transfer-encoding'] !== undefined;
}

function streamEndsWithHead(request: IncomingMessage): boolean {
  const { stream } = request as { readonly stream?: { readonly endAfterHeaders?: boolean } };
  return stream?.endAfterHeaders === true;
}

/** A length passes as it is; of transfer encodings Node undoes the last one, the chunks, and makes them anew. */
function framing(request: IncomingMessage): string[] {
  if (!hasChunks(request)) return [];
  return ['Transfer-Encoding', request.headers['transfer-encoding'] ?? 'chunked'];
}

function connection(request: IncomingMessage, upgrade: string | undefined): string[] {
  if (upgrade !== undefined) return ['Connection', 'Upgrade', 'Upgrade', upgrade];
  // Only the promise to read trailers means something to more than one hop.
  const trailers = /(?:^|,)\s*trailers\s*(?:,|$)/i.test(String(request.headers.te ?? ''));
  return trailers ? ['TE', 'trailers', 'Connection', 'close, TE'] : ['Connection', 'close'];
}

function hostFor(request: IncomingMessage, { family, port, maskRequestHost }: RequestHeadOptions): string {
  if (maskRequestHost !== undefined) return maskedHost(maskRequestHost, port);
  const local = `localhost:${port}`;
  return family === 'e2b' ? authorityOf(request) || local : local;
}

function isToldByProxies(lowerCaseName: string): boolean {
  return TOLD_BY_PROXIES.has(lowerCaseName) || lowerCaseName.startsWith('x-forwarded-');
}

function forwarded(request: IncomingMessage, options: RequestHeadOptions, believed: boolean): string[] {
  const { socket, headers, method = '', url = '' } = request;
  const told = (name: string): string | undefined => {
    const value = believed ? headers[name] : undefined;
    return Array.isArray(value) ? value.join(', ') : value;
  };
  const client = plainAddress(socket.remoteAddress ?? 'unknown');
  const before = told('x-forwarded-for');
  const host = told('x-forwarded-host') ?? authorityOf(request);
  const secure = 'encrypted' in socket && socket.encrypted === true;
  const scheme = options.upgrade?.toLowerCase() === 'websocket' ? 'ws' : 'http';
  const head = [
    ...['X-Forwarded-For', before === undefined ? client : `${before}, ${client}`],
    ...(host === '' ? [] : ['X-Forwarded-Host', host]),
    ...['X-Forwarded-Proto', told('x-forwarded-proto') ?? (secure ? `${scheme}s` : scheme)],
  ];
  // Nobody needs a second form of the same; one that a proxy began is carried on (RFC 7239 section 4).
  const elements = told('forwarded');
  if (elements !== undefined) head.push('Forwarded', `${elements}, for=${nodeName(client)}`);
  if (options.family === 'e2b') return head;
  return [...head, 'X-Forwarded-Method', method, 'X-Forwarded-Uri', url];
}

/** An address in `Forwarded`: one of IPv6 needs brackets and quotes (RFC 7239 section 6). */
function nodeName(address: string): string {
  return address.includes(':') ? `"[${address}]"` : address;
}
