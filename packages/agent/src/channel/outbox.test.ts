import { Duplex } from 'node:stream';
import { PlatformError } from '@agentenv/core';
import { describe, expect, it } from 'vitest';
import { FRAME } from '../generated/protocol.ts';
import { createOutbox } from './outbox.ts';

/** A socket that collects whole writes and takes them only while told to. */
function collectingSocket(): {
  readonly socket: Duplex;
  readonly frames: () => string[];
  stall(): void;
  resume(): void;
} {
  let bytes = Buffer.alloc(0);
  let stalled = false;
  let waiting: (() => void) | undefined;
  const socket = new Duplex({
    writableHighWaterMark: 1024,
    read() {},
    write(chunk: Buffer, _encoding, callback) {
      bytes = Buffer.concat([bytes, chunk]);
      if (stalled) waiting = callback;
      else callback();
    },
  });
  return {
    socket,
    /** `stream:type:length` of everything written. */
    frames() {
      const seen: string[] = [];
      for (let at = 0; at + 9 <= bytes.length; at += 9 + bytes.readUInt32LE(at)) {
        seen.push(`${bytes.readUInt32LE(at + 4)}:${bytes.readUInt8(at + 8)}:${bytes.readUInt32LE(at)}`);
      }
      return seen;
    },
    stall() {
      stalled = true;
    },
    resume() {
      stalled = false;
      waiting?.();
    },
  };
}

const settle = () => new Promise<void>((resolve) => setImmediate(resolve));
const EMPTY = new Uint8Array(0);

describe('outbox', () => {
  it('sends control frames before DATA that was queued earlier', async () => {
    const { socket, frames } = collectingSocket();
    const outbox = createOutbox(socket);
    const sent = outbox.open(17, 1000).write(new Uint8Array(10));
    outbox.control(16, FRAME.CREDIT, new Uint8Array(4));
    await sent;
    expect(frames()).toEqual(['16:2:4', '17:0:10']);
  });

  it('takes turns between streams, frame by frame', async () => {
    const { socket, frames, stall, resume } = collectingSocket();
    stall();
    const outbox = createOutbox(socket);
    const writes = [17, 21, 25].map((stream) => outbox.open(stream, 1e6).write(new Uint8Array(70_000)));
    await settle();
    resume();
    await Promise.all(writes);
    const order = frames().map((frame) => frame.split(':')[0]);
    expect(order).toEqual(['17', '21', '25', '17', '21', '25', '17', '21', '25']);
  });

  it('never sends more than the credit, but what there is', async () => {
    const { socket, frames } = collectingSocket();
    const queue = createOutbox(socket).open(17, 100);
    const sent = queue.write(new Uint8Array(150));
    await settle();
    expect(frames()).toEqual(['17:0:100']);
    queue.addCredit(20);
    await settle();
    expect(frames()).toEqual(['17:0:100', '17:0:20']);
    queue.addCredit(1000);
    await sent;
    expect(frames()).toEqual(['17:0:100', '17:0:20', '17:0:30']);
  });

  it('keeps EOF behind the data of its stream and sends it without credit', async () => {
    const { socket, frames } = collectingSocket();
    const queue = createOutbox(socket).open(17, 10);
    const sent = queue.write(new Uint8Array(20));
    const ended = queue.end();
    await settle();
    expect(frames()).toEqual(['17:0:10']);
    queue.addCredit(10);
    await Promise.all([sent, ended]);
    expect(frames()).toEqual(['17:0:10', '17:0:10', '17:1:0']);
    await expect(queue.write(new Uint8Array(1))).rejects.toMatchObject({ code: 'conflict' });
  });

  it('stops while the socket is full and goes on when it drained, control first', async () => {
    const { socket, frames, stall, resume } = collectingSocket();
    stall();
    const outbox = createOutbox(socket);
    const queue = outbox.open(17, 1e6);
    const sent = queue.write(new Uint8Array(100_000));
    await settle();
    expect(frames().length).toBe(1);
    outbox.control(16, FRAME.CREDIT, new Uint8Array(4));
    await settle();
    expect(frames().length).toBe(1);
    resume();
    await sent;
    expect(frames().slice(0, 2)).toEqual(['17:0:32768', '16:2:4']);
  });

  it('holds everything behind the moment of the hold, and lets the resuming frame out first', async () => {
    const { socket, frames } = collectingSocket();
    const outbox = createOutbox(socket);
    outbox.control(16, FRAME.REQUEST, EMPTY);
    outbox.hold();
    const sent = outbox.open(17, 1000).write(new Uint8Array(5));
    outbox.control(20, FRAME.REQUEST, EMPTY);
    await settle();
    expect(frames()).toEqual(['16:4:0']);
    outbox.resume({ stream: 24, type: FRAME.REQUEST, payload: EMPTY });
    await sent;
    expect(frames()).toEqual(['16:4:0', '24:4:0', '20:4:0', '17:0:5']);
  });

  it('takes back a request that has not left, and says when it was too late', async () => {
    const { socket, frames } = collectingSocket();
    const outbox = createOutbox(socket);
    outbox.control(16, FRAME.REQUEST, EMPTY);
    await settle();
    expect(outbox.withdraw(16)).toBe(false);
    outbox.hold();
    outbox.control(20, FRAME.REQUEST, EMPTY);
    expect(outbox.withdraw(20)).toBe(true);
    expect(outbox.queuedControl).toBe(0);
    outbox.resume();
    await settle();
    expect(frames()).toEqual(['16:4:0']);
  });

  it('a write that was given up is not sent', async () => {
    const { socket, frames } = collectingSocket();
    const queue = createOutbox(socket).open(17, 0);
    const controller = new AbortController();
    const sent = queue.write(new Uint8Array(5), controller.signal);
    controller.abort();
    await expect(sent).rejects.toMatchObject({ code: 'canceled' });
    queue.addCredit(100);
    await settle();
    expect(frames()).toEqual([]);
  });

  it('a failed stream rejects what waits and what comes', async () => {
    const queue = createOutbox(collectingSocket().socket).open(17, 0);
    const error = new PlatformError('sandbox_unavailable', 'gone');
    const sent = queue.write(new Uint8Array(5));
    queue.fail(error);
    await expect(sent).rejects.toBe(error);
    await expect(queue.write(new Uint8Array(5))).rejects.toBe(error);
    await expect(queue.end()).rejects.toBe(error);
  });

  it('bounds the writes that wait on one stream', async () => {
    const queue = createOutbox(collectingSocket().socket).open(17, 0);
    const waiting = Array.from({ length: 1024 }, () => queue.write(new Uint8Array(1)));
    await expect(queue.write(new Uint8Array(1))).rejects.toMatchObject({ code: 'capacity' });
    queue.fail(new PlatformError('canceled', 'over'));
    await Promise.allSettled(waiting);
  });
});
