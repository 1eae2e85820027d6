import { PlatformError } from '@agentenv/core';
import type { ConnectCodeName } from '@agentenv/protocol';
import { Code, ConnectError } from '@connectrpc/connect';

const CODES = {
  canceled: Code.Canceled,
  unknown: Code.Unknown,
  invalid_argument: Code.InvalidArgument,
  deadline_exceeded: Code.DeadlineExceeded,
  not_found: Code.NotFound,
  already_exists: Code.AlreadyExists,
  permission_denied: Code.PermissionDenied,
  resource_exhausted: Code.ResourceExhausted,
  failed_precondition: Code.FailedPrecondition,
  aborted: Code.Aborted,
  out_of_range: Code.OutOfRange,
  unimplemented: Code.Unimplemented,
  internal: Code.Internal,
  unavailable: Code.Unavailable,
  data_loss: Code.DataLoss,
  unauthenticated: Code.Unauthenticated,
} as const satisfies Record<ConnectCodeName, Code>;

/** What an RPC answers for anything its handler throws; a ConnectError stays as it is. */
export function toConnectError(caught: unknown): ConnectError {
  if (caught instanceof ConnectError) return caught;
  const error = PlatformError.fromUnknown(caught);
  return new ConnectError(error.message, CODES[error.mapping.connect], undefined, undefined, error);
}

/**
 * What an RPC answers when reading its request fails. The library calls some messages that cannot be read `internal`;
 * whatever arrived is the client's doing.
 */
export function toRequestError(caught: unknown): ConnectError {
  const error = toConnectError(caught);
  if (error.code !== Code.Internal) return error;
  return new ConnectError(error.rawMessage, Code.InvalidArgument, undefined, undefined, error);
}

/** Whether the answer of a call is moot because the sandbox itself is gone. */
export function isSandboxGone(caught: unknown): boolean {
  const cause = caught instanceof ConnectError ? caught.cause : caught;
  return cause instanceof PlatformError && cause.code === 'sandbox_unavailable';
}

/** Whether somebody threw this on purpose, to be told to the client. */
export function isExpected(caught: unknown): boolean {
  return caught instanceof ConnectError || caught instanceof PlatformError;
}
