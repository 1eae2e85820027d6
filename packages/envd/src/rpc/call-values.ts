import { createContextKey } from '@connectrpc/connect';

/** What an RPC knows of the HTTP request it came with. */
export interface CallValues {
  /** User named by `Authorization: Basic`; undefined when none is. */
  readonly user: string | undefined;
  /** Time left of `connect-timeout-ms` when the request arrived, milliseconds; undefined = no limit. */
  readonly timeoutMs: number | undefined;
  /** `Clock.monotonic` of the arrival. */
  readonly arrivedAt: number;
  /** Silence after which a stream sends a keepalive event, milliseconds. */
  readonly keepaliveMs: number;
  /** The message of a call with one answer could be read: what fails from here on is not its client's doing. */
  messageRead(): void;
  /** Aborts when the answer is sent, or its client gone; the signal of the call aborts when its handler is done. */
  readonly answered: AbortSignal;
  /** Breaks the connection: the sandbox is gone, and a client must not take an answer for an end (contract e2b.md section 10.3). */
  breakOff(): void;
  /**
   * For streams whose client reads JSON: writes one finished frame (Latin-1 text) past the protocol library, behind
   * every message that was yielded before. Allowed once the first message was, as that one carries the headers.
   * Settles when the client has room for more. Undefined where there is no such way.
   */
  readonly writeFrame: ((frame: string) => Promise<void>) | undefined;
  /** How the client of a call with one answer reads it. */
  readonly codec: 'json' | 'binary';
  /**
   * For calls with one answer: these bytes are it, in place of the message that is returned, and taken only as fast as
   * the client reads. An error of theirs breaks the connection, as the answer has begun.
   */
  answerWith(body: AsyncIterable<Uint8Array>): void;
}

/** Where the adapter leaves them for the handlers. */
export const CALL_VALUES = createContextKey<CallValues>(
  {
    user: undefined,
    timeoutMs: undefined,
    arrivedAt: 0,
    keepaliveMs: 90_000,
    messageRead() {},
    answered: AbortSignal.abort(),
    breakOff() {},
    writeFrame: undefined,
    codec: 'json',
    answerWith() {},
  },
  { description: 'values of the HTTP request' },
);
