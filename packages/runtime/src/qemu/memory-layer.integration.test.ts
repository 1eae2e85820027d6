import { createHash } from 'node:crypto';
import { mkdtemp, open, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Mapper } from '../testing/memory-mapper.ts';
import { createMemoryThread, type MemoryThread } from './memory-thread.ts';

const PAGE = 4096;
const PAGES = 2048;
const SIZE = PAGES * PAGE;

describe('memory layers of a live process', () => {
  let directory: string;
  let base: string;
  let memory: MemoryThread;

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'aenv-layer-'));
    base = join(directory, 'base');
    memory = createMemoryThread();
    await writeFile(base, Buffer.alloc(SIZE / 4, 0x5a));
    await truncate(base, SIZE);
  });
  afterEach(async () => {
    await memory[Symbol.asyncDispose]();
    await rm(directory, { recursive: true, force: true });
  });

  const everyThird = Array.from({ length: 300 }, (_, index) => index * 3);
  const changes = [...everyThird, ...Array.from({ length: 600 }, (_, index) => 1000 + index), PAGES - 1];

  async function digestOf(path: string): Promise<string> {
    return createHash('sha256')
      .update(await readFile(path))
      .digest('hex');
  }

  test('hold exactly the changed pages, and make another process of the same base equal', async () => {
    const before = await digestOf(base);
    const target = join(directory, 'layer');
    await using source = await Mapper.start(base, SIZE);
    await using copy = await Mapper.start(base, SIZE);
    await source.change(changes);
    const { bytes } = await memory.run({
      kind: 'save-layer',
      pid: source.pid,
      mapped: base,
      size: SIZE,
      target,
      limit: SIZE,
    });
    const head = PAGE;
    expect(bytes).toBe(head + changes.length * PAGE);
    const hashed = await memory.run({ kind: 'hash-file', path: target });
    expect(hashed).toEqual({ bytes, sha256: await digestOf(target) });

    const applied = await memory.run({
      kind: 'apply-layers',
      pid: copy.pid,
      mapped: base,
      size: SIZE,
      sources: [target],
    });
    expect(applied.bytes).toBe(changes.length * PAGE);
    expect(await copy.digest()).toBe(await source.digest());
    expect(await digestOf(base)).toBe(before);
  });

  test('are not written when more changed than asked for', async () => {
    const target = join(directory, 'layer');
    await using source = await Mapper.start(base, SIZE);
    await source.change(everyThird);
    const limit = everyThird.length * PAGE;
    const job = { kind: 'save-layer', pid: source.pid, mapped: base, size: SIZE, target, limit: limit - 1 } as const;
    expect((await memory.run(job)).bytes).toBe(0);
    await expect(readFile(target)).rejects.toThrow('ENOENT');
    expect((await memory.run({ ...job, limit })).bytes).toBe(PAGE + limit);
  });

  test('are cumulative: a layer of a restored process holds what it was restored from and what it changed since', async () => {
    const first = join(directory, 'first');
    const second = join(directory, 'second');
    await using source = await Mapper.start(base, SIZE);
    await using middle = await Mapper.start(base, SIZE);
    await using last = await Mapper.start(base, SIZE);
    await source.change([1, 2, 3]);
    const facts = { mapped: base, size: SIZE, limit: SIZE };
    await memory.run({ kind: 'save-layer', pid: source.pid, ...facts, target: first });
    await memory.run({ kind: 'apply-layers', pid: middle.pid, mapped: base, size: SIZE, sources: [first] });
    await middle.change([3, 900]);
    await memory.run({ kind: 'save-layer', pid: middle.pid, ...facts, target: second });
    await memory.run({ kind: 'apply-layers', pid: last.pid, mapped: base, size: SIZE, sources: [second] });
    expect(await last.digest()).toBe(await middle.digest());
  });

  test('that were cut short, or of another guest, touch nothing', async () => {
    const target = join(directory, 'layer');
    await using source = await Mapper.start(base, SIZE);
    await using copy = await Mapper.start(base, SIZE);
    await source.change(everyThird);
    const facts = { mapped: base, size: SIZE, limit: SIZE };
    const { bytes } = await memory.run({ kind: 'save-layer', pid: source.pid, ...facts, target });
    const untouched = await copy.digest();
    await truncate(target, bytes - 1);
    const apply = () =>
      memory.run({ kind: 'apply-layers', pid: copy.pid, mapped: base, size: SIZE, sources: [target] });
    await expect(apply()).rejects.toThrow('instead of');
    const file = await open(target, 'r+');
    await file.write(Buffer.from('not a layer'), 0, 11, 0);
    await file.close();
    await expect(apply()).rejects.toThrow('not a memory layer');
    expect(await copy.digest()).toBe(untouched);
  });

  test('an existing file is never written over, and a process without the mapping is refused', async () => {
    const target = join(directory, 'layer');
    await writeFile(target, 'somebody else');
    await using source = await Mapper.start(base, SIZE);
    const facts = { kind: 'save-layer', pid: source.pid, mapped: base, size: SIZE, target, limit: SIZE } as const;
    await expect(memory.run(facts)).rejects.toThrow('EEXIST');
    await expect(memory.run({ ...facts, mapped: '/elsewhere' })).rejects.toThrow('does not map');
    expect(await readFile(target, 'utf8')).toBe('somebody else');
  });
});
