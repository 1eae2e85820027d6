import { PlatformError } from '@agentenv/core';
import type { operations } from '@agentenv/protocol/custom-extension';

/** The hooks of the custom extension as their paths spell them. */
export type HookName = 'start-fresh' | 'start-resume' | 'patch-params' | 'stop';

/** One operation of the extension's document for each; a hook without one does not compile. */
export const HOOK_OPERATIONS = {
  'start-fresh': 'startFresh',
  'start-resume': 'startResume',
  'patch-params': 'patchParams',
  stop: 'stop',
} as const satisfies Record<HookName, keyof operations>;

/**
 * How a call of the extension failed: it answered 4xx, it answered anything else that is not 2xx, or there was no answer
 * that can be read. The first is the caller's, the others are the server's.
 */
export type HookOutcome = 'rejected' | 'server-error' | 'transport';

/** A call that failed, with its outcome as `details.outcome`; the message is what API callers see. */
export function hookFailure(
  outcome: HookOutcome,
  message: string,
  facts: { readonly hook: HookName; readonly status?: number; readonly cause?: unknown },
): PlatformError {
  const { cause, ...rest } = facts;
  return new PlatformError(outcome === 'rejected' ? 'extension_rejected' : 'extension_failed', message, {
    details: { ...rest, outcome },
    ...(cause === undefined ? {} : { cause }),
  });
}

/** Errors inside errors that are looked through; more are no wrapping but a defect. */
const DEEPEST = 32;

/**
 * The failed call of the extension that caused an error, however it was wrapped: as the cause of another one, among
 * several, or suppressed by the failure of a release on the way.
 */
export function findHookFailure(error: unknown): PlatformError | undefined {
  const seen = new Set<unknown>();
  const next: unknown[] = [error];
  for (let current = next.shift(); current !== undefined && seen.size < DEEPEST; current = next.shift()) {
    if (seen.has(current)) continue;
    seen.add(current);
    if (current instanceof PlatformError && isHookCode(current.code)) return current;
    if (current instanceof AggregateError) next.push(...current.errors);
    if (current instanceof SuppressedError) next.push(current.suppressed, current.error);
    if (current instanceof Error) next.push(current.cause);
  }
  return undefined;
}

function isHookCode(code: PlatformError['code']): boolean {
  return code === 'extension_rejected' || code === 'extension_failed';
}

/** Operations of clients in which the extension has a say. */
export type HookedOperation = 'create' | 'connect' | 'resume' | 'auto-resume' | 'fork' | 'patch';

/** What a rejection by the extension is to the caller (contract hooks.md section 4); every other failure is a 500. */
const REJECTION: Readonly<Record<HookedOperation, PlatformError['code']>> = {
  create: 'extension_rejected',
  connect: 'extension_rejected',
  resume: 'conflict',
  // The data plane has words of its own for it: 502.
  'auto-resume': 'extension_rejected',
  fork: 'extension_rejected',
  patch: 'extension_rejected',
};

/** The outcome of an operation as its caller gets it. */
export async function answering<T>(operation: HookedOperation, outcome: Promise<T>): Promise<T> {
  try {
    return await outcome;
  } catch (error) {
    throw answerToCaller(operation, error);
  }
}

/** The error a caller gets for a failed operation; what the extension has nothing to do with stays as it is. */
export function answerToCaller(operation: HookedOperation, error: unknown): unknown {
  const failure = findHookFailure(error);
  if (failure === undefined) return error;
  if (failure.code !== 'extension_rejected' || REJECTION[operation] === failure.code) return failure;
  return new PlatformError(REJECTION[operation], failure.message, { cause: failure, details: failure.details });
}
