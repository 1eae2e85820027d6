import { type Clock, callWithin, type ExtensionParams, type PlatformError } from '@agentenv/core';
import type { operations } from '@agentenv/protocol/custom-extension';
import { exchange } from './exchange.ts';
import { type HOOK_OPERATIONS, type HookName, hookFailure } from './failure.ts';

type RequestOf<Name extends HookName> =
  operations[(typeof HOOK_OPERATIONS)[Name]]['requestBody']['content']['application/json'];
export type StartRequest = RequestOf<'start-fresh'>;
export type PatchRequest = RequestOf<'patch-params'>;
export type StopRequest = RequestOf<'stop'>;

/**
 * The operator's extension as the server calls it (contract hooks.md sections 1 and 2): one attempt each, bounded in time
 * and size. Failures are `extension_rejected` or `extension_failed`; an abort rejects with its reason.
 */
export interface ExtensionClient {
  /** Kernel arguments it asks for; undefined: none. */
  startFresh(request: StartRequest, signal?: AbortSignal): Promise<string | undefined>;
  startResume(request: StartRequest, signal?: AbortSignal): Promise<void>;
  /** The whole new value. */
  patchParams(request: PatchRequest, signal?: AbortSignal): Promise<ExtensionParams>;
  stop(request: StopRequest, signal?: AbortSignal): Promise<void>;
}

export interface ExtensionClientOptions {
  /** Without trailing slashes. */
  readonly url: string;
  /** Longest whole call, milliseconds. */
  readonly timeoutMs: number;
  readonly clock: Clock;
}

/** Largest answer that is read, bytes. */
const MAX_ANSWER_BYTES = 256 * 1024;

type Json = Readonly<Record<string, unknown>>;

const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

export function createExtensionClient({ url, timeoutMs, clock }: ExtensionClientOptions): ExtensionClient {
  async function call(hook: HookName, body: object, answer: 'read' | 'ignored', signal?: AbortSignal): Promise<string> {
    const request = {
      url: new URL(`${url}/sandbox-hook/${hook}`),
      body: JSON.stringify(body),
      answer,
      maxBytes: MAX_ANSWER_BYTES,
    };
    const bounds = { what: 'it', timeoutMs, graceMs: 0, ...(signal === undefined ? {} : { signal }) };
    let answered: Awaited<ReturnType<typeof exchange>>;
    try {
      answered = await callWithin(clock, bounds, (aborted) => exchange(request, aborted));
    } catch (cause) {
      signal?.throwIfAborted();
      const why = cause instanceof Error ? cause.message : String(cause);
      throw hookFailure('transport', `the custom extension could not be asked for ${hook}: ${why}`, { hook, cause });
    }
    const { status, text } = answered;
    if (status >= 200 && status < 300) return text;
    const said = text.trim() === '' ? '' : `: ${text.trim()}`;
    if (status >= 400 && status < 500) {
      throw hookFailure('rejected', `the custom extension rejected ${hook} with ${status}${said}`, { hook, status });
    }
    throw hookFailure('server-error', `the custom extension failed ${hook} with ${status}${said}`, { hook, status });
  }

  function unreadable(hook: HookName, why: string, cause?: unknown): PlatformError {
    return hookFailure('transport', `the custom extension answered ${hook} with ${why}`, { hook, cause });
  }

  function parse(hook: HookName, text: string): Json {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch (cause) {
      throw unreadable(hook, 'something that is not JSON', cause);
    }
    if (!isObject(value)) throw unreadable(hook, 'something that is not an object');
    return value;
  }

  return {
    async startFresh(request, signal) {
      const { extraBootArgs } = parse('start-fresh', await call('start-fresh', request, 'read', signal));
      if (extraBootArgs === undefined || extraBootArgs === null) return undefined;
      if (typeof extraBootArgs !== 'string') throw unreadable('start-fresh', 'extraBootArgs that are not text');
      const text = extraBootArgs.trim();
      // The kernel reads one line.
      if (/\p{Cc}/u.test(text)) throw unreadable('start-fresh', 'control characters in extraBootArgs');
      return text === '' ? undefined : text;
    },
    async startResume(request, signal) {
      await call('start-resume', request, 'ignored', signal);
    },
    async patchParams(request, signal) {
      const { customExtensionParams = {} } = parse('patch-params', await call('patch-params', request, 'read', signal));
      if (!isObject(customExtensionParams)) {
        throw unreadable('patch-params', 'customExtensionParams that are not an object');
      }
      return customExtensionParams;
    },
    async stop(request, signal) {
      await call('stop', request, 'ignored', signal);
    },
  };
}
