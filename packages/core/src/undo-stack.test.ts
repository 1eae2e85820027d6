import { describe, expect, test } from 'vitest';
import { createFakeClock } from './testing/index.ts';
import { createUndoStack } from './undo-stack.ts';

describe('undo stack', () => {
  test('undoes in reverse order, once, and accepts nothing afterwards', async () => {
    const clock = createFakeClock();
    const undone: string[] = [];
    const stack = createUndoStack({ clock, stepTimeoutMs: 1_000 });
    for (const step of ['record', 'engine', 'route']) {
      stack.push(step, async () => {
        undone.push(step);
      });
    }
    expect(await Promise.all([stack.unwind(), stack.unwind()])).toEqual([undefined, undefined]);
    expect(undone).toEqual(['route', 'engine', 'record']);
    expect(await stack.unwind()).toBeUndefined();
    expect(undone.length).toBe(3);
    expect(() => stack.push('late', () => {})).toThrow('late is not acquired any more');
    expect(clock.pendingTimers).toBe(0);
  });

  test('stops at a step that fails, keeps it and what is below, and goes on from there', async () => {
    const undone: string[] = [];
    let broken = true;
    const stack = createUndoStack({ clock: createFakeClock(), stepTimeoutMs: 1_000 });
    stack.push('record', () => void undone.push('record'));
    stack.push('engine', async () => {
      if (broken) throw new Error('will not die');
      undone.push('engine');
    });
    stack.push('route', () => void undone.push('route'));
    const failure = await stack.unwind();
    expect(failure).toMatchObject({ step: 'engine', error: { code: 'internal', message: 'releasing engine failed' } });
    expect(undone).toEqual(['route']);
    expect(stack.size).toBe(2);
    expect([stack.has('engine'), stack.has('route')]).toEqual([true, false]);
    broken = false;
    expect(await stack.unwind()).toBeUndefined();
    expect(undone).toEqual(['route', 'engine', 'record']);
  });

  test('a step that never answers fails at its deadline', async () => {
    const clock = createFakeClock();
    const stack = createUndoStack({ clock, stepTimeoutMs: 5_000 });
    stack.push('engine', () => new Promise<void>(() => {}));
    const unwinding = stack.unwind();
    await clock.advance(5_000);
    expect(await unwinding).toMatchObject({
      step: 'engine',
      error: { code: 'deadline_exceeded', message: 'releasing engine did not answer within 5 s' },
    });
    expect(stack.size).toBe(1);
    expect(clock.pendingTimers).toBe(0);
  });
});
