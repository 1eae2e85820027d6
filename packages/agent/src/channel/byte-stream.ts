import { Duplex } from 'node:stream';
import { PlatformError } from '@agentenv/core';
import { LIMITS } from '../generated/protocol.ts';
import type { ChannelStream, StreamEvents, StreamOptions } from './channel.ts';
import { compact, createChunkQueue } from './chunk-queue.ts';

/** Bytes a connection buffers in each direction beside its receive window. */
const BUFFER_BYTES = 16_384;

/** A connection of the guest as a node stream, before and after its channel stream exists. */
export interface ByteStream {
  readonly duplex: Duplex;
  /** To register the channel stream with. */
  readonly events: Omit<StreamEvents, 'response'> & StreamOptions;
  /** Joins the channel stream and grants its window. */
  attach(stream: ChannelStream): void;
}

/** Creates a Duplex with half-close and back-pressure both ways; destroying it early resets the stream in the guest. */
export function createByteStream(): ByteStream {
  const queue = createChunkQueue();
  let stream: ChannelStream | undefined;
  /** The reader asked for more than there was. */
  let wanted = false;
  let guestEnded = false;
  let hostEnded = false;

  function hand(chunk: Buffer): void {
    wanted = duplex.push(chunk);
    stream?.settle(chunk.length);
  }

  function deliver(): void {
    while (wanted) {
      const chunk = queue.shift();
      if (chunk === undefined) break;
      hand(chunk);
    }
    if (guestEnded && queue.length === 0) duplex.push(null);
  }

  const sender = (): NonNullable<ChannelStream['sender']> => {
    if (stream?.sender === undefined) throw new PlatformError('conflict', 'the connection is not open');
    return stream.sender;
  };

  const duplex = new Duplex({
    allowHalfOpen: true,
    highWaterMark: BUFFER_BYTES,
    read() {
      wanted = true;
      deliver();
    },
    write(chunk: Buffer, _encoding, callback) {
      sender()
        .write(chunk)
        .then(() => callback(), callback);
    },
    final(callback) {
      sender()
        .end()
        .then(() => {
          hostEnded = true;
          callback();
        }, callback);
    },
    destroy(error, callback) {
      queue.clear();
      if (guestEnded && hostEnded) stream?.release();
      else stream?.reset();
      callback(error);
    },
  });

  // The guest may reset a connection at any moment, also while nobody listens yet; that must not end the server.
  duplex.on('error', () => {});

  return {
    duplex,
    events: {
      receiveWindow: LIMITS.STREAM_WINDOW,
      sendCredit: LIMITS.STREAM_WINDOW,
      data(piece) {
        if (wanted && queue.length === 0) hand(compact(piece));
        else queue.push(piece);
      },
      eof() {
        guestEnded = true;
        deliver();
      },
      lost(error) {
        // A connection whose two directions had ended is complete, whatever comes behind.
        if (!(guestEnded && hostEnded)) duplex.destroy(error);
      },
    },
    attach(opened) {
      stream = opened;
      opened.open();
    },
  };
}
