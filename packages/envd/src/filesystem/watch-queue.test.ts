import { EventType } from '@agentenv/protocol/filesystem';
import { describe, expect, test } from 'vitest';
import { createWatchQueue, type WatchQueue } from './watch-queue.ts';

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
    const queue = createWatchQueue();
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
    const queue = createWatchQueue();
    queue.push(event('x', 0x200 | 0x100 | 0x2 | 0x4 | 0x40));
    expect(drain(queue)).toEqual(['CREATE x', 'RENAME x', 'CHMOD x', 'WRITE x', 'REMOVE x']);
  });

  test('the watched directory itself is a dot', () => {
    const queue = createWatchQueue();
    queue.push(event('', 0x400));
    expect(drain(queue)).toEqual(['REMOVE .']);
  });

  test('an overflow in the guest is told behind what came before it', () => {
    const queue = createWatchQueue();
    queue.push(event('a', 0x100));
    queue.push(event('', 0x4000));
    queue.push(event('b', 0x100));
    expect(queue.take()).toMatchObject({ name: 'a' });
    expect(() => queue.take()).toThrow(LOST);
    expect(() => queue.take()).toThrow(LOST);
  });

  test('what waits is bounded', () => {
    const queue = createWatchQueue();
    for (let count = 0; count < 100_000; count++) queue.push(event('x'.repeat(100), 0x100));
    let taken = 0;
    expect(() => {
      while (queue.take() !== undefined) taken++;
    }).toThrow(LOST);
    expect(taken).toBeGreaterThan(20_000);
    expect(taken).toBeLessThan(40_000);
  });

  test('a reader that keeps up never loses anything', () => {
    const queue = createWatchQueue();
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
      const queue = createWatchQueue();
      const wait = queue.wait();
      happen(queue);
      await wait;
    }
  });
});
