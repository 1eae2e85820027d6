import type { Duplex } from 'node:stream';
import { PlatformError } from '@agentenv/core';
import type { Agent } from '../agent.ts';
import { createByteStream } from '../channel/byte-stream.ts';
import { GUEST_STREAMS } from '../channel/channel.ts';
import { EVENTS } from '../generated/protocol.ts';
import { decodeBody } from '../wire/decode-body.ts';
import { ProtocolViolation } from '../wire/protocol-violation.ts';
import { type ClientContext, notify } from './context.ts';
import { DEADLINES } from './deadlines.ts';

/** Connections a guest may have open to the host at once; more are reset. */
const MAX_ACCEPTED = 1024;

export interface PortOptions {
  /** The sandbox's own address in its network, tried when nothing listens on loopback; empty = none. */
  readonly slotAddress: string;
}

/** Creates the TCP primitives of one channel. */
export function createPorts(
  { channel, calls, log }: ClientContext,
  { slotAddress }: PortOptions,
): Pick<Agent, 'connectPort' | 'listenPort'> {
  let accepted = 0;

  function accept(stream: number): Duplex {
    const { duplex, events, attach } = createByteStream();
    attach(channel.stream(stream, events, events));
    accepted++;
    duplex.once('close', () => accepted--);
    return duplex;
  }

  return {
    async connectPort(port, signal) {
      const connection = createByteStream();
      const call = calls.open(
        'connectPort',
        { port, slotAddress },
        {
          deadlineMs: DEADLINES.connectPort,
          deadlineIn: 'host',
          signal,
          stream: connection.events,
          onResponse: () => connection.attach(call.stream),
        },
      );
      await call.response;
      const { duplex } = connection;
      // The guest reset it in the same breath. Its 'close' is over, so whoever waited for one would wait for ever.
      if (duplex.destroyed) throw duplex.errored ?? new PlatformError('unavailable', 'the connection was reset');
      return duplex;
    },

    async listenPort(port, onConnection, signal) {
      let listening = true;
      const call = calls.open(
        'listenPort',
        { port },
        {
          deadlineMs: DEADLINES.listenPort,
          deadlineIn: 'host',
          signal,
          stream: {
            event(kind, payload) {
              if (kind !== EVENTS.accepted.kind) throw new ProtocolViolation(`event kind ${kind} on a listen stream`);
              const { stream } = decodeBody(EVENTS.accepted.body, payload);
              if (stream < GUEST_STREAMS) throw new ProtocolViolation(`connection accepted on stream ${stream}`);
              if (!listening || accepted >= MAX_ACCEPTED) return channel.reset(stream);
              const connection = accept(stream);
              if (!notify(log, 'the handler of a connection', () => onConnection(connection))) connection.destroy();
            },
            lost(error) {
              log.debug({ err: error, port }, 'a listener ended');
            },
          },
        },
      );
      await call.response;
      return {
        async [Symbol.asyncDispose]() {
          if (!listening) return;
          // The stream stays known: a connection accepted meanwhile must be refused, or the guest keeps it for ever.
          listening = false;
          channel.reset(call.stream.id);
        },
      };
    },
  };
}
