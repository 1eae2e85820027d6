import type { Log } from '@agentenv/core';
import { destination, pino, stdSerializers, stdTimeFunctions } from 'pino';
import { PinoPretty } from 'pino-pretty';

export type LogFormat = 'compact' | 'pretty' | 'json';
export type LogLevel = 'debug' | 'info' | 'warn' | 'error';

/** Names whose values never appear in a log, wherever in the first levels of a record they stand. */
export const REDACTED_KEYS = [
  'apiKey',
  'accessToken',
  'envdAccessToken',
  'trafficAccessToken',
  'channelKey',
  'seed',
  'authorization',
  'x-api-key',
  'x-access-token',
  'e2b-traffic-access-token',
  'cookie',
  'env',
  'envVars',
  'body',
  'signature',
] as const;

/** How deep a name is looked for: the record, what it holds, and what that holds (`request.headers.authorization`). */
const DEPTH_PREFIXES = ['', '*.', '*.*.'];

/** A log and the means to write out what it still holds before the process ends. */
export interface ServerLog {
  readonly log: Log;
  flush(): void;
}

/** The log of the server on file descriptor 1 (or `fd`): JSON lines, or text for people. */
export function createLog(options: {
  readonly format: LogFormat;
  readonly level: LogLevel;
  readonly fd?: number;
  /** What every line says beside its own fields: which request is being worked on. */
  readonly context?: () => object | undefined;
}): ServerLog {
  const fd = options.fd ?? 1;
  const settings = {
    level: options.level,
    base: null,
    timestamp: stdTimeFunctions.isoTime,
    formatters: { level: (label: string) => ({ level: label }) },
    serializers: { err: stdSerializers.err, error: stdSerializers.err },
    redact: { paths: redactedPaths(), censor: '[redacted]' },
    // A copy: the fields of the line are added to it.
    mixin: () => ({ ...options.context?.() }),
  };
  if (options.format === 'json') {
    // Asynchronous, so that a reader that stands still never stops the server.
    const stream = destination({ fd, sync: false });
    return { log: pino(settings, stream), flush: () => stream.flushSync() };
  }
  const stream = PinoPretty({
    destination: fd,
    sync: true,
    singleLine: options.format === 'compact',
    translateTime: 'SYS:HH:MM:ss.l',
  });
  return { log: pino(settings, stream), flush: () => {} };
}

function redactedPaths(): string[] {
  return DEPTH_PREFIXES.flatMap((prefix) =>
    REDACTED_KEYS.map((key) => (/^\w+$/.test(key) ? `${prefix}${key}` : `${prefix.replace(/\.$/, '')}["${key}"]`)),
  );
}
