import { type Log, PlatformError } from '@agentenv/core';
import type { ProcessOutput } from '../agent.ts';
import type { Channel, ChannelStream } from '../channel/channel.ts';
import { type ChunkQueue, createChunkQueue } from '../channel/chunk-queue.ts';
import { LIMITS } from '../generated/protocol.ts';

type OutputName = ProcessOutput['stream'];

export interface OutputSource {
  readonly stream: OutputName;
  /** Its stream of the channel. */
  readonly id: number;
  /** Bytes the guest sent before this epoch, and whether its EOF was among them. */
  readonly sent: bigint;
  readonly ended: boolean;
}

export interface OutputFlowOptions {
  readonly channel: Channel;
  readonly log: Log;
  readonly sources: readonly OutputSource[];
  /** Called once: everything was handed on, or the channel is lost. */
  readonly onEnd: (error: PlatformError | undefined) => void;
}

/** The output of one process on its way to its only consumer. */
export interface OutputFlow {
  received(stream: OutputName): bigint;
  /** Starts the flow: no credit is granted, so nothing is buffered, before. */
  consume(consumer: (output: ProcessOutput) => void | Promise<void>): void;
}

interface Port {
  readonly source: OutputSource;
  readonly queue: ChunkQueue;
  channelStream: ChannelStream | undefined;
  received: bigint;
  ended: boolean;
}

/** Registers the output streams. The consumer is called for one piece at a time, the next when it settled. */
export function createOutputFlow({ channel, log, sources, onEnd }: OutputFlowOptions): OutputFlow {
  let consumer: ((output: ProcessOutput) => void | Promise<void>) | undefined;
  let busy = false;
  let over = false;
  let turn = 0;

  function end(error?: PlatformError): void {
    if (over) return;
    over = true;
    for (const port of ports) port.queue.clear();
    onEnd(error);
  }

  function endIfDrained(): void {
    if (!busy && ports.every((port) => port.ended && port.queue.length === 0)) end();
  }

  // A consumer that fails has settled: its process must not stand still for ever.
  function onConsumerError(caught: unknown): void {
    log.warn({ err: caught }, 'the consumer of process output failed');
  }

  async function finish(result: Promise<void>, port: Port, bytes: number): Promise<void> {
    try {
      await result;
    } catch (caught) {
      onConsumerError(caught);
    }
    busy = false;
    port.channelStream?.settle(bytes);
    pump();
  }

  function hand(port: Port, data: Buffer): void {
    if (consumer === undefined) return;
    port.received += BigInt(data.length);
    try {
      const result = consumer({ stream: port.source.stream, data });
      if (result !== undefined) {
        busy = true;
        void finish(result, port, data.length);
        return;
      }
    } catch (caught) {
      onConsumerError(caught);
    }
    port.channelStream?.settle(data.length);
  }

  /** The next piece, taking turns so that neither stream waits for the other's backlog. */
  function take(): readonly [Port, Buffer] | undefined {
    for (let step = 0; step < ports.length; step++) {
      const port = ports[(turn + step) % ports.length];
      const chunk = port?.queue.shift();
      if (port !== undefined && chunk !== undefined) {
        turn = (turn + step + 1) % ports.length;
        return [port, chunk];
      }
    }
    return undefined;
  }

  function pump(): void {
    while (!busy && !over) {
      const next = take();
      if (next === undefined) break;
      hand(...next);
    }
    endIfDrained();
  }

  function onData(port: Port, piece: Buffer): void {
    if (busy || port.queue.length > 0) port.queue.push(piece);
    else hand(port, piece);
  }

  function onEof(port: Port): void {
    port.ended = true;
    port.channelStream?.release();
    endIfDrained();
  }

  const ports = sources.map((source): Port => {
    const port: Port = {
      source,
      queue: createChunkQueue(),
      channelStream: undefined,
      received: source.sent,
      ended: source.ended,
    };
    if (source.ended) return port;
    port.channelStream = channel.stream(
      source.id,
      {
        data: (piece) => onData(port, piece),
        eof: () => onEof(port),
        lost(error) {
          if (channel.failure !== undefined) end(error);
          else onEof(port);
        },
      },
      { receiveWindow: LIMITS.INTERACTIVE_WINDOW, receiveWindowLimit: LIMITS.STREAM_WINDOW },
    );
    return port;
  });
  endIfDrained();

  return {
    received: (stream) => ports.find((port) => port.source.stream === stream)?.received ?? 0n,
    consume(given) {
      if (consumer !== undefined) throw new PlatformError('conflict', 'the output of this process has its consumer');
      consumer = given;
      for (const port of ports) port.channelStream?.open();
    },
  };
}
