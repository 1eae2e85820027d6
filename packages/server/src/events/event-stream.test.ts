import { once } from 'node:events';
import type { Readable } from 'node:stream';
import type { LifecycleChange, SandboxId, SandboxRecord } from '@agentenv/core';
import { createFakeClock, createRecordingLog, sandboxRecord } from '@agentenv/core/testing';
import { describe, expect, it } from 'vitest';
import { createTestEvents, parseEventStream } from '../testing/events.ts';
import type { EventBusLimits } from './event-bus.ts';
import type { EventStreamLimits, EventStreamRequest } from './event-stream.ts';

const ONE = 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId;
const TWO = 'ibbbbbbbbbbbbbbbbbbbb' as SandboxId;
const CREATED = { type: 'sandbox.lifecycle.created' } as const;
const EVERYTHING: EventStreamRequest = { sandboxIds: undefined, types: undefined, after: undefined };

function start(limits: Partial<EventBusLimits> = {}, streamLimits: Partial<EventStreamLimits> = {}) {
  const clock = createFakeClock();
  const test = createTestEvents({ clock, log: createRecordingLog(), limits, streamLimits });
  const publish = (id: SandboxId = ONE, change: LifecycleChange = CREATED, more: Partial<SandboxRecord> = {}) => {
    test.events.publish(sandboxRecord({ id, ...more }), change);
    return test.events.at(test.events.end - 1)?.id ?? '';
  };
  const open = (request: Partial<EventStreamRequest> = {}, closed = new AbortController()) => {
    const stream = test.eventStreams.open({ ...EVERYTHING, ...request }, closed.signal);
    return stream.once('close', () => closed.abort());
  };
  return { ...test, clock, publish, open };
}

/** What a stream that is read at once has brought so far; `ids` of events, without those that only tell the place. */
function follow(stream: Readable) {
  let text = '';
  stream.setEncoding('utf8').on('data', (piece: string) => {
    text += piece;
  });
  const blocks = () => parseEventStream(text).blocks;
  return {
    blocks,
    ids: () => blocks().flatMap(({ id, data }) => (data === undefined ? [] : [id])),
    /** The id a client would come back with. */
    lastId: () => blocks().findLast(({ id }) => id !== undefined)?.id ?? '',
  };
}

describe('a reader', () => {
  it('gets every event from when it comes, as id, type and one line of JSON', async () => {
    const { publish, open, clock, events } = start();
    publish();
    const reader = follow(open());
    const id = publish(TWO);
    await clock.advance(0);
    expect(reader.ids()).toEqual([id]);
    const block = reader.blocks().at(-1);
    expect(block).toEqual({ id, event: 'sandbox.lifecycle.created', data: events.at(1)?.json });
  });

  it('gets only what it asked for', async () => {
    const { publish, open, clock } = start();
    const ofOne = follow(open({ sandboxIds: new Set([ONE]) }));
    const resumes = follow(open({ types: new Set(['sandbox.lifecycle.resumed']) }));
    const created = publish(ONE);
    publish(TWO);
    const resumed = publish(TWO, { type: 'sandbox.lifecycle.resumed' });
    await clock.advance(0);
    expect(ofOne.ids()).toEqual([created]);
    expect(resumes.ids()).toEqual([resumed]);
    // Its place moves on with what it does not want to see.
    await clock.advance(15_000);
    expect(ofOne.lastId()).toBe(resumed);
  });

  it('that comes back goes on where it was, wherever it was', async () => {
    const { publish, open, clock } = start();
    const first = follow(open());
    await clock.advance(0);
    const before = first.lastId();
    const ids = [publish(), publish(), publish()];
    await clock.advance(0);
    for (const [place, expected] of [
      [before, ids],
      [ids[0], ids.slice(1)],
      [ids[2], []],
    ] as const) {
      const again = follow(open({ after: place ?? '' }));
      await clock.advance(0);
      expect(again.ids()).toEqual(expected);
      expect(again.blocks().some(({ event }) => event === 'stream.missed')).toBe(false);
    }
  });

  it('that comes back too late is told so first, and gets what there is', async () => {
    const { publish, open, clock } = start({ events: 3 });
    const ids = Array.from({ length: 5 }, () => publish());
    const reader = follow(open({ after: ids[0] ?? '' }));
    await clock.advance(0);
    const [missed, ...rest] = reader.blocks().filter(({ data }) => data !== undefined);
    expect(missed).toEqual({ id: ids[1], event: 'stream.missed', data: `{"last_event_id":"${ids[0]}"}` });
    expect(rest.map(({ id }) => id)).toEqual(ids.slice(2));
  });

  it('hears that the stream lives when nothing happens', async () => {
    const { open, clock } = start();
    const reader = follow(open());
    await clock.advance(0);
    const before = reader.blocks().length;
    await clock.advance(150_000);
    expect(reader.blocks()).toHaveLength(before + 10);
    expect(reader.ids()).toEqual([]);
  });

  it('that leaves leaves nothing behind', async () => {
    const { open, clock, eventStreams, publish } = start();
    const leaving = new AbortController();
    const left = open({}, leaving);
    const gone = open();
    expect(eventStreams.readers).toBe(2);
    leaving.abort();
    gone.destroy();
    await clock.advance(0);
    expect(left.destroyed).toBe(true);
    expect(eventStreams.readers).toBe(0);
    expect(clock.pendingTimers).toBe(0);
    publish();
    const never = new AbortController();
    never.abort();
    expect(open({}, never).destroyed).toBe(true);
    await clock.advance(0);
    expect(eventStreams.readers).toBe(0);
  });
});

describe('a slow reader', () => {
  const text = { metadata: { text: 'x'.repeat(1_000) } };

  it('costs its buffer and no more, and gets everything once it reads', async () => {
    const { open, publish, clock } = start({}, { bufferBytes: 4_096 });
    const stream = open();
    const ids = Array.from({ length: 100 }, () => publish(ONE, CREATED, text));
    await clock.advance(0);
    expect(stream.readableLength).toBeLessThan(4_096 + 2_000);
    const reader = follow(stream);
    await clock.advance(0);
    await expect.poll(() => reader.ids().length).toBe(100);
    expect(reader.ids()).toEqual(ids);
  });

  it('is cut off when what it has not read is not kept any more', async () => {
    const { open, publish, clock, cutOffs, eventStreams } = start({ events: 10 }, { bufferBytes: 4_096 });
    const stream = open();
    for (let index = 0; index < 5; index++) publish(ONE, CREATED, text);
    await clock.advance(0);
    for (let index = 0; index < 10; index++) publish(ONE, CREATED, text);
    await clock.advance(0);
    expect(stream.destroyed).toBe(false);
    stream.resume();
    await once(stream, 'close');
    expect(stream.readableEnded).toBe(false);
    expect(cutOffs).toEqual(['lagging']);
    expect(eventStreams.readers).toBe(0);
    expect(clock.pendingTimers).toBe(0);
  });

  it('is cut off when it takes nothing for a minute', async () => {
    const { open, publish, clock, cutOffs } = start({}, { bufferBytes: 4_096 });
    const stream = open();
    for (let index = 0; index < 50; index++) publish(ONE, CREATED, text);
    await clock.advance(59_000);
    expect(stream.destroyed).toBe(false);
    await clock.advance(20_000);
    expect(stream.destroyed).toBe(true);
    expect(cutOffs).toEqual(['stalled']);
    expect(clock.pendingTimers).toBe(0);
  });

  it('does not slow others down', async () => {
    const { open, publish, clock } = start({}, { bufferBytes: 4_096 });
    open();
    const reader = follow(open());
    for (let index = 0; index < 50; index++) publish(ONE, CREATED, text);
    await expect.poll(() => reader.ids().length).toBe(50);
    await clock.advance(0);
  });
});

it('has no more readers than it may', () => {
  const { open, eventStreams } = start({}, { readers: 2 });
  open();
  open();
  expect(() => open()).toThrow('there are 2 readers of events already');
  expect(eventStreams.readers).toBe(2);
});

it('ends its streams in order, with what came last', async () => {
  const { open, publish, clock, eventStreams } = start();
  const streams = [open(), open()];
  const readers = streams.map(follow);
  await clock.advance(0);
  const id = publish();
  const ending = eventStreams[Symbol.asyncDispose]();
  publish();
  await ending;
  expect(streams.every((stream) => stream.readableEnded)).toBe(true);
  expect(readers.map((reader) => reader.ids())).toEqual([[id], [id]]);
  expect(() => open()).toThrow('the server is shutting down');
  expect(clock.pendingTimers).toBe(0);
});

it('does not wait long for readers that do not read what is left', async () => {
  const { open, publish, clock, eventStreams } = start({}, { bufferBytes: 100 });
  const stream = open();
  publish();
  const ending = eventStreams[Symbol.asyncDispose]();
  await clock.advance(1_000);
  await ending;
  expect([stream.destroyed, eventStreams.readers, clock.pendingTimers]).toEqual([true, 0, 0]);
});
