import { EventType } from '@agentenv/protocol/filesystem';
import { describe, expect, test } from 'vitest';
import { createWatchMemory, createWatchQueue, type WatchQueue } from './watch-queue.ts';

const event = (path: string, mask: number) => ({ path, mask, cookie: 0, isDirectory: false });
const LOST = expect.objectContaining({ code: 'capacity' });

function drain(queue: WatchQueue): string[] {
  const seen: string[] = [];
  for (let next = queue.take(); next !== undefined; next = queue.take()) {
    seen.push(`${EventType[next.type]} ${next.name}`);
  }
  return seen;
}

describe('watch queue', () => {
  test('tells every kind of change', () => {
    const queue = createWatchQueue(createWatchMemory());
    for (const [path, mask] of [
      ['made', 0x100],
      ['arrived', 0x80],
      ['left', 0x40],
      ['mode', 0x4],
      ['written', 0x2],
      ['removed', 0x200],
    ] as const) {
      queue.push(event(path, mask));
    }
    expect(drain(queue)).toEqual([
      'CREATE made',
      'CREATE arrived',
      'RENAME left',
      'CHMOD mode',
      'WRITE written',
      'REMOVE removed',
    ]);
  });

  test('one event of the kernel may be several, in the order of the contract', () => {
    const queue = createWatchQueue(createWatchMemory());
    queue.push(event('x', 0x200 | 0x100 | 0x2 | 0x4 | 0x40));
    expect(drain(queue)).toEqual(['CREATE x', 'RENAME x', 'CHMOD x', 'WRITE x', 'REMOVE x']);
  });

  test('the watched directory itself is a dot', () => {
    const queue = createWatchQueue(createWatchMemory());
    queue.push(event('', 0x400));
    expect(drain(queue)).toEqual(['REMOVE .']);
  });

  test('an overflow in the guest is told behind what came before it', () => {
    const queue = createWatchQueue(createWatchMemory());
    queue.push(event('a', 0x100));
    queue.push(event('', 0x4000));
    queue.push(event('b', 0x100));
    expect(queue.take()).toMatchObject({ name: 'a' });
    expect(() => queue.take()).toThrow(LOST);
    expect(() => queue.take()).toThrow(LOST);
  });

  test('what waits is bounded', () => {
    const queue = createWatchQueue(createWatchMemory());
    for (let count = 0; count < 100_000; count++) queue.push(event('x'.repeat(100), 0x100));
    let taken = 0;
    expect(() => {
      while (queue.take() !== undefined) taken++;
    }).toThrow(LOST);
    expect(taken).toBeGreaterThan(20_000);
    expect(taken).toBeLessThan(40_000);
  });

  test('what waits for all of a sandbox is bounded too, and given back by reading and by disposing', () => {
    const memory = createWatchMemory(10_000);
    const [first, second, third] = [createWatchQueue(memory), createWatchQueue(memory), createWatchQueue(memory)];
    for (let count = 0; count < 40; count++) first.push(event('x'.repeat(36), 0x100));
    for (let count = 0; count < 40; count++) second.push(event('x'.repeat(36), 0x100));
    expect(drain(first)).toHaveLength(40);
    expect(() => drain(second)).toThrow(LOST);
    third.push(event('y', 0x100));
    expect(drain(third)).toEqual(['CREATE y']);
    second[Symbol.dispose]();
    for (let count = 0; count < 50; count++) third.push(event('x'.repeat(36), 0x100));
    third[Symbol.dispose]();
    expect(memory.take(10_000)).toBe(true);
  });

  test('a reader that keeps up never loses anything', () => {
    const queue = createWatchQueue(createWatchMemory());
    for (let count = 0; count < 200_000; count++) {
      queue.push(event(String(count), 0x100));
      expect(queue.take()?.name).toBe(String(count));
    }
  });

  test('wait ends with an event, a loss, or an interruption', async () => {
    for (const happen of [
      (queue: WatchQueue) => queue.push(event('a', 0x100)),
      (queue: WatchQueue) => queue.push(event('', 0x4000)),
      (queue: WatchQueue) => queue.interrupt(),
    ]) {
      const queue = createWatchQueue(createWatchMemory());
      const wait = queue.wait();
      happen(queue);
      await wait;
    }
  });
});
