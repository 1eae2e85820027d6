import { describe, expect, test } from 'vitest';
import { createGate } from './gate.ts';

describe('gate', () => {
  test('lets its width in at once and the others in their order', async () => {
    const gate = createGate(2);
    const entered: string[] = [];
    const enter = async (name: string) => {
      const pass = await gate.enter();
      entered.push(name);
      return pass;
    };
    const first = await enter('a');
    await enter('b');
    const third = enter('c');
    const fourth = enter('d');
    await Promise.resolve();
    expect(entered).toEqual(['a', 'b']);
    first[Symbol.dispose]();
    first[Symbol.dispose]();
    (await third)[Symbol.dispose]();
    await fourth;
    expect(entered).toEqual(['a', 'b', 'c', 'd']);
  });

  test('an aborted wait gives its place to the next', async () => {
    const gate = createGate(1);
    const pass = await gate.enter();
    const abort = new AbortController();
    const given = expect(gate.enter(abort.signal)).rejects.toMatchObject({ code: 'canceled' });
    const next = gate.enter();
    abort.abort();
    await given;
    pass[Symbol.dispose]();
    (await next)[Symbol.dispose]();
    await expect(gate.enter(AbortSignal.abort())).rejects.toMatchObject({ code: 'canceled' });
    (await gate.enter())[Symbol.dispose]();
  });
});
