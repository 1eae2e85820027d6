import { expect, it } from 'vitest';
import { createLineWriter } from './line-writer.ts';

it('writes in batches, in order, one at a time', async () => {
  const batches: (readonly string[])[] = [];
  const gates: (() => void)[] = [];
  const writer = createLineWriter({
    maxBytes: 1_000,
    onDropped: () => expect.fail(),
    write: (lines) => {
      batches.push(lines);
      const { promise, resolve } = Promise.withResolvers<void>();
      gates.push(resolve);
      return promise;
    },
  });
  writer.append('a');
  writer.append('b');
  await Promise.resolve();
  writer.append('c');
  writer.append('d');
  const flushed = writer.flushed();
  await expect.poll(() => gates.length).toBe(1);
  gates[0]?.();
  await expect.poll(() => gates.length).toBe(2);
  gates[1]?.();
  await flushed;
  expect(batches).toEqual([
    ['a\n', 'b\n'],
    ['c\n', 'd\n'],
  ]);
  await writer.flushed();
});

it('tells what it drops: what is too much, and what cannot be written', async () => {
  const dropped: number[] = [];
  const written: string[] = [];
  let broken = true;
  const writer = createLineWriter({
    maxBytes: 10,
    onDropped: (lines) => dropped.push(lines),
    async write(lines) {
      if (broken) throw new Error('disk full');
      written.push(...lines);
    },
  });
  writer.append('aaaa');
  writer.append('bbbb');
  writer.append('cccc');
  expect(dropped).toEqual([1]);
  await writer.flushed();
  expect(dropped).toEqual([1, 2]);
  broken = false;
  writer.append('dddd');
  await writer[Symbol.asyncDispose]();
  expect(written).toEqual(['dddd\n']);
});
