/**
 * The closed set of error codes of the platform and what each becomes on every border.
 * `docs/errors.md` is checked against this table.
 */
export interface ErrorMapping {
  /** HTTP status, also the `code` of the JSON body (contract e2b.md section 3). */
  readonly http: number;
  /** Connect code string of an envd RPC. */
  readonly connect: ConnectCodeName;
  /** E2B `error_code`, where the platform has one for it. */
  readonly errorCode?: string;
  /** Exit code of the command line. */
  readonly exit: number;
}

export type ConnectCodeName =
  | 'canceled'
  | 'unknown'
  | 'invalid_argument'
  | 'deadline_exceeded'
  | 'not_found'
  | 'already_exists'
  | 'permission_denied'
  | 'resource_exhausted'
  | 'failed_precondition'
  | 'aborted'
  | 'out_of_range'
  | 'unimplemented'
  | 'internal'
  | 'unavailable'
  | 'data_loss'
  | 'unauthenticated';

export const ERROR_CATALOGUE = {
  /** Malformed or out-of-range input; the message names the field. */
  invalid_argument: { http: 400, connect: 'invalid_argument', exit: 2 },
  /** A known field that this server does not honour; the message names it. */
  unsupported_field: { http: 400, connect: 'invalid_argument', exit: 2 },
  /** The operator's custom extension answered 4xx; the message carries its status and body. */
  extension_rejected: { http: 400, connect: 'failed_precondition', exit: 2 },
  unauthenticated: { http: 401, connect: 'unauthenticated', exit: 3 },
  permission_denied: { http: 403, connect: 'permission_denied', exit: 3 },
  not_found: { http: 404, connect: 'not_found', exit: 4 },
  /** The sandbox was killed while the caller's operation was running. */
  killed: { http: 404, connect: 'not_found', exit: 4 },
  method_not_allowed: { http: 405, connect: 'unimplemented', exit: 2 },
  not_acceptable: { http: 406, connect: 'invalid_argument', exit: 2 },
  request_timeout: { http: 408, connect: 'deadline_exceeded', exit: 5 },
  already_exists: { http: 409, connect: 'already_exists', exit: 4 },
  /** The object is in a state that does not allow the operation; the message names the state. */
  conflict: { http: 409, connect: 'failed_precondition', exit: 4 },
  payload_too_large: { http: 413, connect: 'resource_exhausted', exit: 2 },
  /** An `Expect` header with anything but `100-continue`. */
  expectation_failed: { http: 417, connect: 'invalid_argument', exit: 2 },
  /** A limit of this host is reached; the message names it, `Retry-After` is sent. */
  capacity: { http: 429, connect: 'resource_exhausted', errorCode: 'sandbox_capacity_unavailable', exit: 6 },
  header_too_large: { http: 431, connect: 'resource_exhausted', exit: 2 },
  /** The client went away. */
  canceled: { http: 499, connect: 'canceled', exit: 130 },
  internal: { http: 500, connect: 'internal', errorCode: 'internal_server_error', exit: 1 },
  /** The engine could not start or restore the sandbox. */
  create_failed: { http: 500, connect: 'internal', errorCode: 'sandbox_create_failed', exit: 1 },
  /** The operator's custom extension failed, or gave no answer that can be read. */
  extension_failed: { http: 500, connect: 'internal', exit: 1 },
  not_implemented: { http: 501, connect: 'unimplemented', exit: 1 },
  /** The sandbox does not answer (gone, or its guest agent is unreachable). */
  sandbox_unavailable: { http: 502, connect: 'unavailable', exit: 1 },
  /** The server is shutting down or not ready. */
  unavailable: { http: 503, connect: 'unavailable', exit: 5 },
  deadline_exceeded: { http: 504, connect: 'deadline_exceeded', exit: 5 },
  /** No space in the sandbox or on the host's data disk. */
  no_space: { http: 507, connect: 'resource_exhausted', exit: 6 },
} as const satisfies Record<string, ErrorMapping>;

export type ErrorCode = keyof typeof ERROR_CATALOGUE;
