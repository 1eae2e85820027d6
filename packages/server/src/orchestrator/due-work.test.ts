import { describe, expect, test } from 'vitest';
import { createDueWork } from './due-work.ts';

/** Work that ends when the test says so. */
function heldWork() {
  const begun: string[] = [];
  const under = new Map<string, PromiseWithResolvers<void>>();
  return {
    begun,
    async work(key: string): Promise<void> {
      begun.push(key);
      const held = Promise.withResolvers<void>();
      under.set(key, held);
      await held.promise;
    },
    async finish(key: string): Promise<void> {
      under.get(key)?.resolve();
      for (let turn = 0; turn < 5; turn++) await Promise.resolve();
    },
  };
}

describe('work that is due', () => {
  test('is done a few at a time, of those that wait the earliest first', async () => {
    const held = heldWork();
    using due = createDueWork(2, held.work);
    for (const [key, at] of [
      ['a', 50],
      ['b', 40],
      ['c', 30],
      ['d', 10],
      ['e', 20],
    ] as const)
      due.add(key, at);
    expect(held.begun).toEqual(['a', 'b']);
    await held.finish('b');
    expect(held.begun).toEqual(['a', 'b', 'd']);
    await held.finish('a');
    await held.finish('d');
    expect(held.begun).toEqual(['a', 'b', 'd', 'e', 'c']);
  });

  test('is not done twice at once for a key, and not twice because it was asked for twice', async () => {
    const held = heldWork();
    using due = createDueWork(2, held.work);
    due.add('a', 1);
    due.add('a', 1);
    due.add('a', 1);
    due.add('b', 2);
    expect(held.begun).toEqual(['a', 'b']);
    await held.finish('a');
    expect(held.begun).toEqual(['a', 'b', 'a']);
    await held.finish('a');
    await held.finish('b');
    expect(held.begun).toEqual(['a', 'b', 'a']);
  });

  test('is not begun any more after its end', async () => {
    const held = heldWork();
    const due = createDueWork(1, held.work);
    due.add('a', 1);
    due.add('b', 1);
    due[Symbol.dispose]();
    await held.finish('a');
    due.add('c', 1);
    expect(held.begun).toEqual(['a']);
  });
});
