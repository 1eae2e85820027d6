import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createOutputHub } from './output-hub.ts';
import type { Subscriber } from './subscriber.ts';

const END = { exitCode: 0, exited: true, status: 'exit status 0', error: undefined, byDeadline: false };
const KIB = 1024;

function output(bytes: number, stream: 'stdout' | 'stderr' | 'pty' = 'stdout') {
  return { stream, data: new Uint8Array(bytes) };
}

/** Everything that waits, as text per event. */
function drain(subscriber: Subscriber): string[] {
  const items: string[] = [];
  for (let item = subscriber.take(); item !== undefined; item = subscriber.take()) {
    if (item.kind === 'end') return [...items, 'end'];
    items.push(`${item.output.stream}:${Buffer.from(item.output.data).toString()}`);
  }
  return items;
}

async function isPending(promise: Promise<void> | undefined): Promise<boolean> {
  const marker = Symbol('pending');
  return (await Promise.race([promise, Promise.resolve(marker)])) === marker;
}

describe('output hub', () => {
  test('without subscribers output is dropped and the process never waits', () => {
    const hub = createOutputHub();
    for (let count = 0; count < 100; count++) expect(hub.push(output(64 * KIB))).toBeUndefined();
    hub.end(END);
    expect(drain(hub.subscribe())).toEqual(['end']);
  });

  test('order is kept, neighbours of one stream are joined, streams stay apart', () => {
    const hub = createOutputHub();
    const subscriber = hub.subscribe();
    for (const [stream, text] of [
      ['stdout', 'a'],
      ['stdout', 'b'],
      ['stderr', 'c'],
      ['stdout', 'd'],
    ] as const) {
      void hub.push({ stream, data: Buffer.from(text) });
    }
    hub.end(END);
    void hub.push({ stream: 'stdout', data: Buffer.from('after the end') });
    expect(drain(subscriber)).toEqual(['stdout:ab', 'stderr:c', 'stdout:d', 'end']);
  });

  test('events are at most 32 KiB for pipes and 16 KiB for a terminal', () => {
    const hub = createOutputHub();
    const subscriber = hub.subscribe();
    void hub.push(output(70 * KIB));
    void hub.push(output(20 * KIB, 'pty'));
    const sizes = [];
    for (let item = subscriber.take(); item?.kind === 'output'; item = subscriber.take())
      sizes.push(item.output.data.length);
    expect(sizes).toEqual([32 * KIB, 32 * KIB, 6 * KIB, 16 * KIB, 4 * KIB]);
  });

  test('a single slow subscriber makes the process wait until it has read', async () => {
    const hub = createOutputHub();
    const subscriber = hub.subscribe();
    let room: Promise<void> | undefined;
    for (let count = 0; room === undefined; count++) {
      expect(count).toBeLessThan(10);
      room = hub.push(output(32 * KIB));
    }
    expect(await isPending(room)).toBe(true);
    expect(subscriber.waiting).toBeLessThan(256 * KIB);
    while (subscriber.take() !== undefined);
    expect(await isPending(room)).toBe(false);
  });

  test('pieces of one byte are bounded by what they cost, not by their bytes', () => {
    const hub = createOutputHub();
    hub.subscribe();
    let pieces = 0;
    while (hub.push(output(1)) === undefined) pieces++;
    expect(pieces).toBeLessThan(1000);
  });

  test('a subscriber 1 MiB behind one that keeps up is ended, the other goes on', () => {
    const hub = createOutputHub();
    const slow = hub.subscribe();
    const fast = hub.subscribe();
    let pushed = 0;
    for (; pushed < 64; pushed++) {
      expect(hub.push(output(32 * KIB))).toBeUndefined();
      while (fast.take() !== undefined);
    }
    expect(() => slow.take()).toThrow(expect.objectContaining({ code: 'capacity' }));
    hub.end(END);
    expect(drain(fast)).toEqual(['end']);
  });

  test('when all are slow nobody is ended and the process waits', async () => {
    const hub = createOutputHub();
    const both = [hub.subscribe(), hub.subscribe()];
    let room: Promise<void> | undefined;
    while (room === undefined) room = hub.push(output(32 * KIB));
    expect(await isPending(room)).toBe(true);
    for (const subscriber of both) expect(subscriber.take()?.kind).toBe('output');
  });

  test('a process that waits goes on when its slow subscriber leaves', async () => {
    const hub = createOutputHub();
    const subscriber = hub.subscribe();
    let room: Promise<void> | undefined;
    while (room === undefined) room = hub.push(output(32 * KIB));
    hub.unsubscribe(subscriber);
    expect(await isPending(room)).toBe(false);
    expect(hub.push(output(1))).toBeUndefined();
  });

  test('the number of subscribers is limited', () => {
    const hub = createOutputHub();
    for (let count = 0; count < 64; count++) hub.subscribe();
    expect(() => hub.subscribe()).toThrow(expect.objectContaining({ code: 'capacity' }));
  });

  test('cut lets what waits through, takes nothing more and then throws', () => {
    const hub = createOutputHub();
    const subscriber = hub.subscribe();
    void hub.push({ stream: 'stdout', data: Buffer.from('before') });
    subscriber.cut(new Error('cut off'));
    void hub.push({ stream: 'stdout', data: Buffer.from('after') });
    expect(subscriber.take()).toMatchObject({ kind: 'output' });
    expect(() => subscriber.take()).toThrow('cut off');
  });

  test('wait resolves for output, the end, a failure and an interruption', async () => {
    for (const happening of [
      (hub: ReturnType<typeof createOutputHub>) => hub.push(output(1)),
      (hub: ReturnType<typeof createOutputHub>) => hub.end(END),
      (hub: ReturnType<typeof createOutputHub>) => hub.fail(new Error('gone')),
      (_hub: ReturnType<typeof createOutputHub>, subscriber: Subscriber) => subscriber.interrupt(),
    ]) {
      const hub = createOutputHub();
      const subscriber = hub.subscribe();
      const wait = subscriber.wait();
      expect(await isPending(wait)).toBe(true);
      void happening(hub, subscriber);
      await wait;
    }
  });

  test('whatever the sizes and the reading, a subscriber that is not ended gets exactly the bytes', () => {
    fc.assert(
      fc.property(fc.array(fc.record({ size: fc.nat(70_000), reads: fc.nat(4) }), { maxLength: 30 }), (steps) => {
        const hub = createOutputHub();
        const subscriber = hub.subscribe();
        const sent: number[] = [];
        const got: number[] = [];
        const read = (): boolean => {
          const item = subscriber.take();
          if (item?.kind !== 'output') return false;
          got.push(...[item.output.data.length, item.output.data[0] ?? 0]);
          return true;
        };
        let total = 0;
        for (const [index, { size, reads }] of steps.entries()) {
          void hub.push({ stream: index % 2 === 0 ? 'stdout' : 'stderr', data: new Uint8Array(size).fill(index) });
          sent.push(size);
          for (let count = 0; count < reads; count++) read();
        }
        while (read());
        for (let index = 0; index < got.length; index += 2) total += got[index] ?? 0;
        expect(total).toBe(sent.reduce((sum, size) => sum + size, 0));
        expect(subscriber.waiting).toBe(0);
      }),
    );
  });
});
