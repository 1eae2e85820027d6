import type { PlatformError } from '@agentenv/core';
import type { Agent } from '../agent.ts';
import { onAbort } from '../channel/abort.ts';
import { LIMITS } from '../generated/protocol.ts';
import type { ClientContext } from './context.ts';
import { DEADLINES } from './deadlines.ts';
import { upload } from './upload.ts';

/** Creates the raw transfers that measure the channel. */
export function createBench(context: ClientContext): Pick<Agent, 'source' | 'sink'> {
  const { calls } = context;
  return {
    async source(bytes, frame, onData, signal) {
      const done = Promise.withResolvers<void>();
      // Looked at after the response, which may fail first.
      done.promise.catch(() => {});
      const call = calls.open(
        'source',
        { bytes, frame },
        {
          deadlineMs: DEADLINES.source,
          deadlineIn: 'host',
          signal,
          stream: {
            receiveWindow: LIMITS.STREAM_WINDOW,
            data(piece) {
              onData(piece);
              call.stream.settle(piece.length);
            },
            eof() {
              call.stream.release();
              done.resolve();
            },
            lost: done.reject,
          },
          onResponse: () => call.stream.open(),
        },
      );
      await call.response;
      using _aborted = onAbort(signal, (error: PlatformError) => {
        call.stream.reset(error);
        done.reject(error);
      });
      await done.promise;
    },

    async sink(body, signal) {
      const { bytes } = await upload(context, 'sink', {}, body, signal);
      return bytes;
    },
  };
}
