import { PlatformError } from '@agentenv/core';
import { STATUS } from '../generated/protocol.ts';
import { cleanText } from '../wire/clean-text.ts';

/** Name of a guest status other than OK; `details.status` of every error that comes from the guest. */
export type GuestStatus = Exclude<keyof typeof STATUS, 'OK'>;

interface StatusRule {
  readonly code: PlatformError['code'];
  /** Shown when the guest gave no message. */
  readonly message: string;
}

const RULES = {
  INVALID: { code: 'invalid_argument', message: 'invalid argument' },
  NOT_FOUND: { code: 'not_found', message: 'not found' },
  EXISTS: { code: 'already_exists', message: 'already exists' },
  NOT_DIRECTORY: { code: 'invalid_argument', message: 'not a directory' },
  IS_DIRECTORY: { code: 'invalid_argument', message: 'is a directory' },
  NOT_REGULAR: { code: 'invalid_argument', message: 'not a regular file' },
  NO_SPACE: { code: 'no_space', message: 'no space left in the sandbox' },
  PERMISSION: { code: 'permission_denied', message: 'permission denied' },
  UNKNOWN_USER: { code: 'invalid_argument', message: 'unknown user' },
  BAD_CWD: { code: 'invalid_argument', message: 'the working directory does not exist' },
  EXEC_FAILED: { code: 'invalid_argument', message: 'the program could not be started' },
  DEADLINE: { code: 'deadline_exceeded', message: 'the deadline passed' },
  LIMIT: { code: 'capacity', message: 'a limit of the sandbox is reached' },
  CANCELED: { code: 'canceled', message: 'the request was canceled' },
  REFUSED: { code: 'unavailable', message: 'connection refused' },
  IO: { code: 'internal', message: 'input/output error' },
  PROTOCOL: { code: 'internal', message: 'the guest agent did not understand the request' },
  UNSUPPORTED: { code: 'not_implemented', message: 'not supported by the guest agent of this sandbox' },
} as const satisfies Record<GuestStatus, StatusRule>;

const isGuestStatus = (name: string): name is GuestStatus => Object.hasOwn(RULES, name);

const NAMES: ReadonlyMap<number, GuestStatus> = new Map(
  Object.entries(STATUS).flatMap(([name, code]) => (isGuestStatus(name) ? [[code, name] as const] : [])),
);

/**
 * The error a guest status becomes. `details` are `{ status, errno }`: the name of the status, so that callers can tell
 * those apart which share a code, and the errno behind it (0 = none).
 */
export function errorOfStatus(status: number, errno: number, message: string): PlatformError {
  const name = NAMES.get(status);
  if (name === undefined) {
    return new PlatformError('internal', `the guest agent answered with the unknown status ${status}`, {
      details: { status, errno },
    });
  }
  const rule = RULES[name];
  return new PlatformError(rule.code, cleanText(message) || rule.message, { details: { status: name, errno } });
}

/** The error of a stream that the guest ended by RESET; its code is a status (0 counts as CANCELED). */
export const errorOfReset = (code: number): PlatformError =>
  errorOfStatus(code === STATUS.OK ? STATUS.CANCELED : code, 0, '');

/** The error of a call whose signal aborted: the reason itself if it is one of ours, else `canceled` or `deadline_exceeded`. */
export function errorOfAbort(signal: AbortSignal): PlatformError {
  const reason: unknown = signal.reason;
  if (reason instanceof PlatformError) return reason;
  const known = reason instanceof Error && (reason.name === 'AbortError' || reason.name === 'TimeoutError');
  return known
    ? PlatformError.fromUnknown(reason)
    : new PlatformError('canceled', 'the request was canceled', { cause: reason });
}
