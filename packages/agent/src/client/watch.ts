import type { Agent } from '../agent.ts';
import { EVENTS, FLAGS } from '../generated/protocol.ts';
import { decodeBody } from '../wire/decode-body.ts';
import { ProtocolViolation } from '../wire/protocol-violation.ts';
import { type ClientContext, notify } from './context.ts';
import { DEADLINES } from './deadlines.ts';

/** Creates the watch primitive of one channel. */
export function createWatches({ calls, log }: ClientContext): Pick<Agent, 'watch'> {
  return {
    async watch(path, { recursive }, onEvent, signal) {
      const flags = recursive ? FLAGS.WATCH_RECURSIVE : 0;
      const call = calls.open(
        'watch',
        { path, flags },
        {
          deadlineMs: DEADLINES.watch,
          deadlineIn: 'host',
          signal,
          stream: {
            event(kind, payload) {
              if (kind !== EVENTS.watch.kind) throw new ProtocolViolation(`event kind ${kind} on a watch stream`);
              const { isDir, ...event } = decodeBody(EVENTS.watch.body, payload);
              notify(log, 'the handler of a watch event', () => onEvent({ ...event, isDirectory: isDir }));
            },
            lost(error) {
              log.debug({ err: error, path }, 'a watch ended');
            },
          },
        },
      );
      await call.response;
      return {
        async [Symbol.asyncDispose]() {
          call.stream.reset();
        },
      };
    },
  };
}
