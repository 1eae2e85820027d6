import { PlatformError } from '@agentenv/core';

/** Body of every error answer of the HTTP routes (contract e2b.md section 8). */
export interface ErrorBody {
  /** The HTTP status. */
  readonly code: number;
  readonly message: string;
}

/** What an HTTP route answers for anything caught. */
export function errorAnswer(caught: unknown): { readonly status: number; readonly body: ErrorBody } {
  const error = PlatformError.fromUnknown(caught);
  const status = error.mapping.http;
  return { status, body: { code: status, message: error.message } };
}
