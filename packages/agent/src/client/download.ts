import { type Clock, PlatformError } from '@agentenv/core';
import { onAbort } from '../channel/abort.ts';
import type { ChannelStream, StreamEvents, StreamOptions } from '../channel/channel.ts';
import { createChunkQueue } from '../channel/chunk-queue.ts';
import { LIMITS } from '../generated/protocol.ts';
import { STALL_DEADLINE } from './deadlines.ts';

/** Bytes the guest sends behind a response, up to EOF. */
export interface Download {
  /** To register the channel stream with. */
  readonly events: Omit<StreamEvents, 'response'> & StreamOptions;
  /** Grants the window; from here on the signal ends the transfer. */
  start(stream: ChannelStream, signal: AbortSignal | undefined): void;
  /** One consumer; leaving early ends the transfer in the guest. */
  readonly body: AsyncIterableIterator<Uint8Array>;
}

/** Creates a download that buffers at most its receive window. */
export function createDownload(clock: Clock): Download {
  const queue = createChunkQueue();
  let stream: ChannelStream | undefined;
  let aborted: Disposable | undefined;
  let outcome: 'open' | 'complete' | PlatformError = 'open';
  let arrived: (() => void) | undefined;

  function finish(how: 'complete' | PlatformError): void {
    if (outcome !== 'open') return;
    outcome = how;
    aborted?.[Symbol.dispose]();
    arrived?.();
  }

  /** Ends it from our side. */
  function abandon(error: PlatformError): void {
    stream?.reset(error);
    finish(error);
    queue.clear();
  }

  async function arrival(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    arrived = resolve;
    using _timer = clock.timer(STALL_DEADLINE, () =>
      abandon(new PlatformError('deadline_exceeded', 'the guest sends no more of the body')),
    );
    await promise;
    arrived = undefined;
  }

  return {
    events: {
      receiveWindow: LIMITS.STREAM_WINDOW,
      data(piece) {
        queue.push(piece);
        arrived?.();
      },
      eof() {
        stream?.release();
        finish('complete');
      },
      lost: finish,
    },
    start(opened, signal) {
      stream = opened;
      aborted = onAbort(signal, abandon);
      opened.open();
    },
    body: {
      async next() {
        for (;;) {
          const chunk = queue.shift();
          if (chunk !== undefined) {
            stream?.settle(chunk.length);
            return { done: false, value: chunk };
          }
          if (outcome === 'complete') return { done: true, value: undefined };
          if (outcome !== 'open') throw outcome;
          await arrival();
        }
      },
      async return() {
        abandon(new PlatformError('canceled', 'the reader left'));
        outcome = 'complete';
        return { done: true, value: undefined };
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    },
  };
}
