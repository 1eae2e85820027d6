import { describe, expect, test } from 'vitest';
import { createFakeClock } from './fake-clock.ts';

describe('fake clock', () => {
  test('fires timers in the order of their due time, equal ones in the order they were set', async () => {
    const clock = createFakeClock();
    const fired: string[] = [];
    clock.timer(20, () => fired.push('late'));
    clock.timer(10, () => fired.push('early'));
    clock.timer(10, () => fired.push('early, second'));
    await clock.advance(15);
    expect(fired).toEqual(['early', 'early, second']);
    await clock.advance(5);
    expect(fired).toEqual(['early', 'early, second', 'late']);
    expect(clock.pendingTimers).toBe(0);
  });

  test('runs what a timer started before it fires the next one', async () => {
    const clock = createFakeClock(1_000);
    const seen: number[] = [];
    const wait = (milliseconds: number) =>
      new Promise<void>((resolve) => {
        clock.timer(milliseconds, resolve);
      });
    const work = (async () => {
      await wait(10);
      seen.push(clock.now());
      await wait(10);
      seen.push(clock.now());
    })();
    await clock.advance(100);
    await work;
    expect(seen).toEqual([1_010, 1_020]);
    expect(clock.now()).toBe(1_100);
  });

  test('a disposed timer never fires and a stepped wall moves no timer', async () => {
    const clock = createFakeClock(0);
    let fired = 0;
    clock.timer(10, () => fired++)[Symbol.dispose]();
    clock.timer(50, () => fired++);
    clock.stepWall(3_600_000);
    await clock.advance(40);
    expect(fired).toBe(0);
    expect(clock.now()).toBe(3_600_040);
    expect(clock.monotonic()).toBe(40);
    expect(clock.nextTimerIn).toBe(10);
  });
});
