import { SILENT_LOG } from '@agentenv/core';
import { createFakeClock, type FakeClock } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type ClockKeeper, createClockKeeper } from './clock-keeper.ts';

interface Guest {
  skew: number;
  /** Skew that a step leaves, as it arrives late. */
  late: number;
  delay: number;
  compared: number;
  stepped: number;
  running: boolean;
}

describe('clock keeper', () => {
  let clock: FakeClock;
  let keeper: ClockKeeper;
  beforeEach(() => {
    clock = createFakeClock();
    keeper = createClockKeeper(clock);
  });
  afterEach(async () => {
    await keeper[Symbol.asyncDispose]();
    expect(clock.pendingTimers).toBe(0);
  });

  const wait = (milliseconds: number) => new Promise<void>((resolve) => clock.timer(milliseconds, resolve));

  function guest(facts: Partial<Guest>): Guest & Disposable {
    const state: Guest = { skew: 0, late: 0, delay: 0, compared: 0, stepped: 0, running: true, ...facts };
    const kept = keeper.keep({
      agent: {
        async clockSkew() {
          state.compared++;
          if (state.delay > 0) await wait(state.delay);
          return state.skew;
        },
        async setClock() {
          state.stepped++;
          state.skew = state.late;
          return 0;
        },
      },
      running: () => state.running,
      log: SILENT_LOG,
    });
    return Object.assign(state, kept);
  }

  test('steps a guest that is more than 100 ms off, in either direction, and leaves the others alone', async () => {
    const guests = [guest({ skew: 101 }), guest({ skew: -101 }), guest({ skew: 99 }), guest({ skew: -99 })];
    await clock.advance(30_000);
    expect(guests.map(({ stepped }) => stepped)).toEqual([1, 1, 0, 0]);
  });

  test('does not step on what a slow answer alone explains', async () => {
    const slow = guest({ skew: 300, delay: 600 });
    const certain = guest({ skew: 500, delay: 600 });
    await clock.advance(33_000);
    expect([slow.stepped, certain.stepped]).toEqual([0, 1]);
  });

  test('looks again after a step and gives up on a guest that stays off', async () => {
    const late = guest({ skew: -2_000, late: -150 });
    const hopeless = guest({ skew: -2_000, late: -2_000 });
    const near = guest({ skew: -2_000, late: -50 });
    await clock.advance(30_000);
    expect([late.stepped, hopeless.stepped, near.stepped]).toEqual([3, 3, 1]);
    expect(near.compared).toBe(2);
  });

  test('asks nobody who is stopped or was let go, and uses one timer for all', async () => {
    const stopped = guest({ running: false });
    const gone = guest({});
    const others = Array.from({ length: 10 }, () => guest({}));
    gone[Symbol.dispose]();
    expect(clock.pendingTimers).toBe(1);
    await clock.advance(60_000);
    expect([stopped.compared, gone.compared]).toEqual([0, 0]);
    expect(others.map(({ compared }) => compared)).toEqual(others.map(() => 2));
  });

  test('a guest that does not answer keeps no other from being compared', async () => {
    const dead = keeper.keep({
      agent: { clockSkew: () => Promise.reject(new Error('gone')), setClock: async () => 0 },
      running: () => true,
      log: SILENT_LOG,
    });
    const alive = guest({ skew: 1_000 });
    await clock.advance(30_000);
    expect(alive.stepped).toBe(1);
    dead[Symbol.dispose]();
  });
});
