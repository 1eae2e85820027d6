import { expect, test } from 'vitest';
import { createScratch } from './scratch.ts';

const MIB = 1024 * 1024;

test('gives one job buffers that are its own, and the next one the same ones', () => {
  const scratch = createScratch();
  const [first, second] = [scratch.take(MIB), scratch.take(4096)];
  first.fill(1);
  second.fill(2);
  expect([first.length, second.length]).toEqual([MIB, 4096]);
  expect(first.every((byte) => byte === 1)).toBe(true);
  scratch[Symbol.dispose]();
  const [again, larger] = [scratch.take(100), scratch.take(8192)];
  expect(again.buffer).toBe(first.buffer);
  expect([again.length, larger.length]).toEqual([100, 8192]);
  expect(larger.buffer).not.toBe(second.buffer);
  expect(new Uint32Array(larger.buffer, larger.byteOffset, 2048)).toHaveLength(2048);
});

test('does not keep what a job of a large guest took', () => {
  const scratch = createScratch();
  const large = scratch.take(32 * MIB);
  scratch[Symbol.dispose]();
  expect(scratch.take(32 * MIB).buffer).not.toBe(large.buffer);
});
