import type { IncomingHttpHeaders } from 'node:http';
import { HEADERS } from '@agentenv/protocol';

/** Keepalive of a stream whose request names none, and the most and least it may name, seconds. */
const DEFAULT_KEEPALIVE_S = 90;
const MAX_KEEPALIVE_S = 3600;

/** The user of `Authorization: Basic`, which selects and does not authenticate (contract e2b.md section 9.1, T47). */
export function basicUser(authorization: string | undefined): string | undefined {
  const encoded = /^basic\s+([A-Za-z0-9+/]+={0,2})\s*$/i.exec(authorization ?? '')?.[1];
  if (encoded === undefined) return undefined;
  return Buffer.from(encoded, 'base64').toString('utf8').split(':', 1)[0];
}

/** `keepalive-ping-interval` in milliseconds; whatever is no whole number of seconds above 0 is the default. */
export function keepaliveMs(headers: IncomingHttpHeaders): number {
  const value = headers[HEADERS.keepalivePingInterval];
  const seconds = typeof value === 'string' && /^[1-9]\d{0,8}$/.test(value) ? Number(value) : DEFAULT_KEEPALIVE_S;
  return Math.min(seconds, MAX_KEEPALIVE_S) * 1000;
}

/** `connect-timeout-ms`; undefined when it is absent or malformed, which the protocol layer reports. */
export function connectTimeoutMs(headers: IncomingHttpHeaders): number | undefined {
  const value = headers[HEADERS.connectTimeoutMs];
  return typeof value === 'string' && /^\d{1,10}$/.test(value) ? Number(value) : undefined;
}
