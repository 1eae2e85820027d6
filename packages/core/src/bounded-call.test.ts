import { describe, expect, test } from 'vitest';
import { callWithin } from './bounded-call.ts';
import { createFakeClock } from './testing/index.ts';

const bounds = { what: 'the engine', timeoutMs: 10_000, graceMs: 2_000 };
const never = () => new Promise<never>(() => {});

/** Looks at the outcome at once, so that a rejection in the middle of an advance is never unhandled. */
function watch(call: Promise<unknown>) {
  const outcome: { state: 'pending' | 'resolved' | 'rejected'; value: unknown } = {
    state: 'pending',
    value: undefined,
  };
  call.then(
    (value) => Object.assign(outcome, { state: 'resolved', value }),
    (value) => Object.assign(outcome, { state: 'rejected', value }),
  );
  return outcome;
}

describe('a bounded call', () => {
  test('gives the result and leaves no timer', async () => {
    const clock = createFakeClock();
    await expect(callWithin(clock, bounds, async () => 'answer')).resolves.toBe('answer');
    expect(clock.pendingTimers).toBe(0);
  });

  test('keeps the failure of the call itself', async () => {
    const clock = createFakeClock();
    const failing = callWithin(clock, bounds, async () => {
      throw new Error('engine said no');
    });
    await expect(failing).rejects.toThrow('engine said no');
    expect(clock.pendingTimers).toBe(0);
  });

  test('fails at the deadline naming who did not answer, at once when the call reacts to its signal', async () => {
    const clock = createFakeClock();
    const outcome = watch(
      callWithin(clock, bounds, async (signal) => {
        await new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('aborted'))));
      }),
    );
    await clock.advance(9_999);
    expect(outcome.state).toBe('pending');
    await clock.advance(1);
    expect(outcome).toMatchObject({
      state: 'rejected',
      value: { code: 'deadline_exceeded', message: 'the engine did not answer within 10 s' },
    });
    expect(clock.pendingTimers).toBe(0);
  });

  test('leaves a call that never reacts behind after the grace', async () => {
    const clock = createFakeClock();
    const outcome = watch(callWithin(clock, bounds, never));
    await clock.advance(11_999);
    expect(outcome.state).toBe('pending');
    await clock.advance(1);
    expect(outcome).toMatchObject({ state: 'rejected', value: { code: 'deadline_exceeded' } });
    expect(clock.pendingTimers).toBe(0);
  });

  test('an abort from outside is the outcome, whatever the call says', async () => {
    const clock = createFakeClock();
    const controller = new AbortController();
    const reason = new Error('killed');
    const outcome = watch(callWithin(clock, { ...bounds, graceMs: 0, signal: controller.signal }, never));
    controller.abort(reason);
    await clock.advance(0);
    expect(outcome).toEqual({ state: 'rejected', value: reason });
    await expect(callWithin(clock, { ...bounds, signal: controller.signal }, async () => 'never called')).rejects.toBe(
      reason,
    );
    expect(clock.pendingTimers).toBe(0);
  });
});
