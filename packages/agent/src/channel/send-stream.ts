import { PlatformError } from '@agentenv/core';
import { FRAME } from '../generated/protocol.ts';
import { errorOfAbort } from './status.ts';

/** Usual DATA payload, bytes (guest/PROTOCOL.md, MAX_DATA): best throughput and short waits for others. */
const DATA_BYTES = 32_768;

/** Writes that may wait for credit at once, per stream. */
const MAX_PENDING_WRITES = 1024;

const EMPTY = new Uint8Array(0);

/** The host-to-guest direction of a stream, as its user sees it. */
export interface SendStream {
  /** false after `end`, and after either side reset the stream. */
  readonly writable: boolean;
  /**
   * Resolves when every byte left against credit. The bytes must not change until then nor, as they are not copied,
   * shortly after. Rejects `conflict` after `end`, and with the reason when the stream ends.
   */
  write(data: Uint8Array, signal?: AbortSignal): Promise<void>;
  /** Half-close behind everything written; resolves when the EOF left. Idempotent. */
  end(): Promise<void>;
}

/** The same for the outbox, which decides when a frame may leave. */
export interface SendQueue extends SendStream {
  readonly stream: number;
  /** Takes the next frame that credit allows: a piece of DATA or the EOF. */
  next(): { readonly type: typeof FRAME.DATA | typeof FRAME.EOF; readonly payload: Uint8Array } | undefined;
  /** Whether `next` would return a frame. */
  readonly ready: boolean;
  addCredit(bytes: number): void;
  /** Ends the stream: pending and later writes reject with the error. */
  fail(error: PlatformError): void;
}

interface PendingWrite {
  readonly data: Uint8Array;
  offset: number;
  readonly settle: PromiseWithResolvers<void>;
}

/** Creates the queue of a stream with its first credit in bytes; `wake` is called when it may have become ready. */
export function createSendQueue(
  stream: number,
  options: { readonly credit: number; readonly wake: () => void },
): SendQueue {
  const { wake } = options;
  const pending: PendingWrite[] = [];
  let credit = options.credit;
  let eof: PromiseWithResolvers<void> | undefined;
  let eofSent = false;
  let failure: PlatformError | undefined;

  const isReady = (): boolean => (pending.length > 0 ? credit > 0 : eof !== undefined && !eofSent);

  function withdraw(write: PendingWrite, error: PlatformError): void {
    const index = pending.indexOf(write);
    if (index < 0) return;
    pending.splice(index, 1);
    write.settle.reject(error);
    wake();
  }

  return {
    stream,
    get writable() {
      return eof === undefined && failure === undefined;
    },
    get ready() {
      return isReady();
    },
    async write(data, signal) {
      if (failure !== undefined) throw failure;
      if (eof !== undefined) throw new PlatformError('conflict', 'the stream is closed for writing');
      if (signal?.aborted === true) throw errorOfAbort(signal);
      if (data.length === 0) return;
      if (pending.length >= MAX_PENDING_WRITES) {
        throw new PlatformError('capacity', 'too many writes wait on this stream', { details: { stream } });
      }
      const write: PendingWrite = { data, offset: 0, settle: Promise.withResolvers() };
      const onAbort = (): void => {
        if (signal !== undefined) withdraw(write, errorOfAbort(signal));
      };
      signal?.addEventListener('abort', onAbort, { once: true });
      pending.push(write);
      wake();
      try {
        await write.settle.promise;
      } finally {
        signal?.removeEventListener('abort', onAbort);
      }
    },
    async end() {
      if (failure !== undefined) throw failure;
      eof ??= Promise.withResolvers();
      wake();
      await eof.promise;
    },
    next() {
      if (!isReady()) return undefined;
      const write = pending[0];
      if (write === undefined) {
        eofSent = true;
        eof?.resolve();
        return { type: FRAME.EOF, payload: EMPTY };
      }
      const count = Math.min(write.data.length - write.offset, credit, DATA_BYTES);
      const payload = write.data.subarray(write.offset, write.offset + count);
      write.offset += count;
      credit -= count;
      if (write.offset === write.data.length) {
        pending.shift();
        write.settle.resolve();
      }
      return { type: FRAME.DATA, payload };
    },
    addCredit(bytes) {
      credit += bytes;
      wake();
    },
    fail(error) {
      if (failure !== undefined) return;
      failure = error;
      for (const write of pending.splice(0)) write.settle.reject(error);
      if (eof !== undefined && !eofSent) eof.reject(error);
    },
  };
}
