import { ERROR_CATALOGUE, type ErrorCode, type ErrorMapping } from '@agentenv/protocol';

export interface PlatformErrorOptions {
  /** Facts for logs and bodies; never secrets. */
  readonly details?: Readonly<Record<string, unknown>>;
  /** What was caught; logged, never sent to a client. */
  readonly cause?: unknown;
  /** Whole seconds for `Retry-After`. */
  readonly retryAfterSeconds?: number;
}

/** The one error class of the platform: a closed code, a message that is safe to show, details and a cause. */
export class PlatformError extends Error {
  readonly code: ErrorCode;
  readonly details: Readonly<Record<string, unknown>>;
  readonly retryAfterSeconds: number | undefined;

  constructor(code: ErrorCode, message: string, options: PlatformErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'PlatformError';
    this.code = code;
    this.details = options.details ?? {};
    this.retryAfterSeconds = options.retryAfterSeconds;
  }

  get mapping(): ErrorMapping {
    return ERROR_CATALOGUE[this.code];
  }

  /** Turns anything caught at a border into a PlatformError: aborts become `canceled`, the rest `internal` with the cause kept. */
  static fromUnknown(caught: unknown, message = 'internal error'): PlatformError {
    if (caught instanceof PlatformError) return caught;
    if (caught instanceof Error && caught.name === 'AbortError') {
      return new PlatformError('canceled', 'the request was canceled', { cause: caught });
    }
    if (caught instanceof Error && caught.name === 'TimeoutError') {
      return new PlatformError('deadline_exceeded', 'the deadline passed', { cause: caught });
    }
    return new PlatformError('internal', message, { cause: caught });
  }
}
