import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createDeadlineQueue } from './deadline-queue.ts';
import { createFakeClock } from './testing/index.ts';

describe('deadline queue', () => {
  test('every key fires once at its last time, none after it was deleted, whatever the order of calls', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(
          fc.record({
            key: fc.constantFrom('a', 'b', 'c', 'd', 'e'),
            after: fc.option(fc.integer({ min: 1, max: 4_000 }), { nil: undefined }),
          }),
          { maxLength: 120 },
        ),
        async (calls) => {
          const clock = createFakeClock(0);
          const fired: [string, number][] = [];
          using queue = createDeadlineQueue({ clock, maxWaitMs: 1_000 }, (key) => fired.push([key, clock.now()]));
          const expected = new Map<string, number>();
          for (const { key, after } of calls) {
            if (after === undefined) {
              queue.delete(key);
              expected.delete(key);
            } else {
              queue.set(key, after);
              expected.set(key, after);
            }
          }
          expect(queue.size).toBe(expected.size);
          expect(clock.pendingTimers).toBeLessThanOrEqual(1);
          await clock.advance(4_000);
          expect(new Map(fired)).toEqual(expected);
          expect(fired.length).toBe(expected.size);
          expect(fired.map(([, at]) => at)).toEqual(fired.map(([, at]) => at).sort((a, b) => a - b));
          expect(clock.pendingTimers).toBe(0);
        },
      ),
      { numRuns: 60 },
    );
  });

  test('a wall clock stepped forwards shifts an expiry by no more than the longest wait', async () => {
    const clock = createFakeClock(0);
    const fired: number[] = [];
    using queue = createDeadlineQueue({ clock, maxWaitMs: 1_000 }, () => fired.push(clock.monotonic()));
    queue.set('a', 3_600_000);
    await clock.advance(500);
    clock.stepWall(3_600_000);
    await clock.advance(1_000);
    expect(fired).toEqual([1_000]);
  });

  test('a callback may set the same key again', async () => {
    const clock = createFakeClock(0);
    let fired = 0;
    using queue = createDeadlineQueue({ clock, maxWaitMs: 1_000 }, (key) => {
      fired++;
      if (fired < 3) queue.set(key, clock.now() + 100);
    });
    queue.set('a', 100);
    await clock.advance(1_000);
    expect(fired).toBe(3);
  });

  test('10 000 deadlines extended 20 times each stay cheap and fire', async () => {
    const clock = createFakeClock(0);
    let fired = 0;
    using queue = createDeadlineQueue({ clock, maxWaitMs: 1_000 }, () => fired++);
    for (let round = 1; round <= 20; round++) {
      for (let key = 0; key < 10_000; key++) queue.set(`k${key}`, round * 1_000 + (key % 7));
    }
    expect(queue.size).toBe(10_000);
    await clock.advance(20_010);
    expect(fired).toBe(10_000);
  });

  test('a disposed queue holds no timer and fires nothing', async () => {
    const clock = createFakeClock(0);
    let fired = 0;
    const queue = createDeadlineQueue({ clock, maxWaitMs: 1_000 }, () => fired++);
    queue.set('a', 10);
    queue[Symbol.dispose]();
    queue.set('b', 10);
    await clock.advance(1_000);
    expect(fired).toBe(0);
    expect(clock.pendingTimers).toBe(0);
  });
});
