import { copyFile, mkdir, mkdtemp, open, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SnapshotArtifact } from '@agentenv/core';
import { createRealClock, createRecordingLog, createSeededRandom } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { createHeldSpace } from '../testing/held-space.ts';
import { Mapper } from '../testing/memory-mapper.ts';
import { type BackgroundJobs, createBackgroundJobs, SPARE_DISK_BYTES } from './background-jobs.ts';
import { findMemoryChain } from './find-memory-chain.ts';
import { createMemoryChain, MAX_MEMORY_LAYERS, MERGED_MEMORY_LAYERS, type MemoryChain } from './memory-chain.ts';
import { createMemoryThread, type MemoryThread } from './memory-thread.ts';

const PAGE = 4096;
const PAGES = 2048;
const SIZE = PAGES * PAGE;
/** What the first quarter of the base is full of; the rest is a hole. */
const BASE_BYTE = 0x5a;

describe('a chain of memory layers', () => {
  const log = createRecordingLog();
  const clock = createRealClock();
  const background = createBackgroundJobs({ clock });
  let directory: string;
  let base: string;
  let memory: MemoryThread;
  let serial = 0;

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'aenv-chain-'));
    base = join(directory, 'base');
    memory = createMemoryThread();
    await writeFile(base, Buffer.alloc(SIZE / 4, BASE_BYTE));
    await truncate(base, SIZE);
    log.lines.length = 0;
  });
  afterEach(async () => {
    await memory[Symbol.asyncDispose]();
    await rm(directory, { recursive: true, force: true });
  });

  const facts = (mapper: Mapper) => ({ pid: mapper.pid, mapped: base, size: SIZE });

  async function ownDirectory(): Promise<string> {
    const own = join(directory, `engine-${serial++}`);
    await mkdir(own);
    return own;
  }

  function chainIn(own: string, jobs = background, layers: MemoryChain['layers'] = []): MemoryChain {
    return createMemoryChain({ directory: own, layers, size: SIZE, jobs, log });
  }

  async function known(path: string): Promise<SnapshotArtifact> {
    const { bytes, sha256 } = await memory.run({ kind: 'hash-file', path });
    return { path, size: bytes, sha256 };
  }

  /** One more layer upon the chain, as a capture that is deleted at once; answers the bytes of its pages. */
  async function capture(mapper: Mapper, chain: MemoryChain): Promise<number> {
    await using borrowed = chain.borrow();
    const below = borrowed.layers.length < MAX_MEMORY_LAYERS ? borrowed.layers : [];
    const [source, target] = [join(directory, `copy-${serial++}`), join(directory, `captured-${serial++}`)];
    await memory.run({ kind: 'save-layer', ...facts(mapper), target: source, limit: SIZE });
    const paths = below.map(({ path }) => path);
    await memory.run({ kind: 'reduce-layer', source, below: paths, base, target, size: SIZE });
    const added = await known(target);
    await borrowed.follow([...(await Promise.all(paths.map(known))), added]);
    await Promise.all([source, target].map((path) => rm(path)));
    return added.size - PAGE;
  }

  async function restored(chain: MemoryChain): Promise<Mapper> {
    const mapper = await Mapper.start(base, SIZE);
    const sources = chain.layers.map(({ path }) => path);
    await memory.run({ kind: 'apply-layers', ...facts(mapper), sources });
    return mapper;
  }

  async function digestOfRestored(chain: MemoryChain): Promise<string> {
    await using mapper = await restored(chain);
    // Awaited here: the process ends with this block.
    const digest = await mapper.digest();
    return digest;
  }

  /** As many captures as a merge needs, each of two pages. */
  async function fillChain(source: Mapper, chain: MemoryChain): Promise<void> {
    for (let index = 0; index < MERGED_MEMORY_LAYERS; index++) {
      await source.fill(index + 1, [index, index + 1]);
      await capture(source, chain);
    }
  }

  test('a layer holds the pages that differ from what lies below, and no other', async () => {
    await using chain = chainIn(await ownDirectory());
    await using source = await Mapper.start(base, SIZE);
    await source.fill(1, [3, 4, 5, 1_000]);
    // Touched, but as the base.
    await source.fill(BASE_BYTE, [10, 11]);
    await source.fill(0, [1_500]);
    expect(await capture(source, chain)).toBe(4 * PAGE);
    await source.fill(1, [4]);
    expect(await capture(source, chain)).toBe(0);
    // As the base again, and as nothing: a layer below shows something else.
    await source.fill(BASE_BYTE, [3]);
    await source.fill(0, [5, 1_000]);
    await source.fill(9, [4, 6]);
    expect(await capture(source, chain)).toBe(5 * PAGE);
    expect(await capture(source, chain)).toBe(0);
    expect(chain.layers).toHaveLength(4);
    expect(await digestOfRestored(chain)).toBe(await source.digest());
  });

  test('a chain goes on upon the only layer of a capture of a former version, without its directory', async () => {
    await using source = await Mapper.start(base, SIZE);
    await source.fill(1, [3, 4, 5]);
    const path = join(directory, 'memory.layer');
    await memory.run({ kind: 'save-layer', ...facts(source), target: path, limit: SIZE });
    const own = await ownDirectory();
    await using chain = chainIn(own);
    await chain.take([await known(path)]);
    await rm(path);
    await source.fill(2, [5, 6]);
    expect(await capture(source, chain)).toBe(2 * PAGE);
    expect((await findMemoryChain(own, log)).map((layer) => layer.path)).toEqual(
      chain.layers.map((layer) => layer.path),
    );
    expect(await digestOfRestored(chain)).toBe(await source.digest());
  });

  test('pages an engine gave back count as the base, whatever a layer holds', async () => {
    await using chain = chainIn(await ownDirectory());
    await using source = await Mapper.start(base, SIZE);
    await source.fill(1, [3, 4, 900]);
    await capture(source, chain);
    // A process that never touched them shows the base.
    await using other = await Mapper.start(base, SIZE);
    expect(await capture(other, chain)).toBe(3 * PAGE);
    expect(await digestOfRestored(chain)).toBe(await other.digest());
  });

  test('thirty generations of random changes keep every byte, in a bounded chain, merged off the captures', async () => {
    const { below: pick } = createSeededRandom(7);
    const counted: BackgroundJobs = {
      run(job, signal) {
        merges++;
        return background.run(job, signal);
      },
    };
    let chain = chainIn(await ownDirectory(), counted);
    let source = await Mapper.start(base, SIZE);
    let longest = 0;
    let merges = 0;
    try {
      for (let cycle = 0; cycle < 30; cycle++) {
        const pages = Array.from({ length: pick(200) }, () => pick(PAGES));
        await source.fill([0, BASE_BYTE, 1 + pick(200)][pick(3)] ?? 0, pages);
        if (cycle % 4 === 0) await source.change(Array.from({ length: 120 }, (_, index) => pick(16) * 100 + index));
        expect(await capture(source, chain)).toBeLessThanOrEqual((pages.length + 120) * PAGE);
        // Every other one goes on while the next capture is taken.
        if (cycle % 2 === 0) void chain.compact();
        else await chain.compact();
        longest = Math.max(longest, chain.layers.length);
        if (cycle % 3 !== 2) continue;
        const next = await restored(chain);
        expect(await next.digest()).toBe(await source.digest());
        await source[Symbol.asyncDispose]();
        source = next;
        const former = chain;
        chain = chainIn(await ownDirectory(), counted);
        await chain.take(former.layers.flatMap((layer) => layer.known ?? []));
        expect(chain.layers).toHaveLength(former.layers.length);
        await former[Symbol.asyncDispose]();
      }
      expect(longest).toBeLessThanOrEqual(MERGED_MEMORY_LAYERS);
      expect(merges).toBeGreaterThan(1);
      expect(await digestOfRestored(chain)).toBe(await source.digest());
      expect(log.find('warn', 'could not be merged')).toEqual([]);
    } finally {
      await source[Symbol.asyncDispose]();
      await chain[Symbol.asyncDispose]();
    }
  });

  test('a capture that goes on during a merge is about the parts and gets the merged layer', async () => {
    const gate = Promise.withResolvers<void>();
    const slow: BackgroundJobs = {
      async run(job, signal) {
        await gate.promise;
        return background.run(job, signal);
      },
    };
    const own = await ownDirectory();
    await using chain = chainIn(own, slow);
    await using source = await Mapper.start(base, SIZE);
    await fillChain(source, chain);
    const merging = chain.compact();
    await source.fill(77, [0, 1_999]);
    await capture(source, chain);
    expect(chain.layers).toHaveLength(MERGED_MEMORY_LAYERS + 1);
    gate.resolve();
    await merging;
    expect(await readdir(own)).toHaveLength(2);
    expect(chain.layers.map(({ first, last }) => [first, last])).toEqual([
      [0, MERGED_MEMORY_LAYERS - 1],
      [MERGED_MEMORY_LAYERS, MERGED_MEMORY_LAYERS],
    ]);
    expect(await digestOfRestored(chain)).toBe(await source.digest());
    await source.fill(78, [5]);
    expect(await capture(source, chain)).toBe(PAGE);
    expect(await digestOfRestored(chain)).toBe(await source.digest());
  });

  test('a merge that ends while a capture borrows its parts removes them afterwards', async () => {
    const own = await ownDirectory();
    await using chain = chainIn(own);
    await using source = await Mapper.start(base, SIZE);
    await fillChain(source, chain);
    const borrowed = chain.borrow();
    await chain.compact();
    expect(chain.layers).toHaveLength(1);
    for (const { path } of borrowed.layers) expect((await readFile(path)).length).toBeGreaterThan(0);
    await borrowed[Symbol.asyncDispose]();
    expect(await readdir(own)).toHaveLength(1);
  });

  test('a merge that fails changes nothing and is tried again upon the next layer, not before', async () => {
    let runs = 0;
    const failing: BackgroundJobs = {
      async run(job, signal) {
        const result = await background.run(job, signal);
        // After its effect: the file is there.
        if (runs++ === 0) throw new Error('input/output error');
        return result;
      },
    };
    const own = await ownDirectory();
    await using chain = chainIn(own, failing);
    await using source = await Mapper.start(base, SIZE);
    await fillChain(source, chain);
    for (let again = 0; again < 2; again++) await chain.compact();
    expect(runs).toBe(1);
    expect(log.find('warn', 'could not be merged')).toHaveLength(1);
    expect(await readdir(own)).toHaveLength(MERGED_MEMORY_LAYERS);
    expect(await digestOfRestored(chain)).toBe(await source.digest());
    await source.fill(70, [8]);
    await capture(source, chain);
    await chain.compact();
    expect(chain.layers).toHaveLength(1);
    expect(await digestOfRestored(chain)).toBe(await source.digest());
  });

  test.each([
    ['is not begun', -1, MERGED_MEMORY_LAYERS, 1],
    ['is done', 0, 1, 0],
  ])('a merge %s where the disk would have %i bytes more than are spared', async (_what, more, length, warnings) => {
    let parts = 0;
    const jobs = createBackgroundJobs({ clock, freeBytes: async () => SPARE_DISK_BYTES + parts + more });
    const own = await ownDirectory();
    await using chain = chainIn(own, jobs);
    await using source = await Mapper.start(base, SIZE);
    await fillChain(source, chain);
    parts = chain.layers.reduce((sum, { bytes }) => sum + bytes, 0);
    await chain.compact();
    expect(chain.layers).toHaveLength(length);
    expect(await readdir(own)).toHaveLength(length);
    expect(log.find('warn', 'could not be merged')).toHaveLength(warnings);
  });

  test('an engine that ends waits neither for its merge nor for those in front of it', async () => {
    // The first merge has its turn, and stays there.
    const space = createHeldSpace();
    const jobs = createBackgroundJobs({ clock, freeBytes: space.freeBytes });
    const [first, second] = [chainIn(await ownDirectory(), jobs), await ownDirectory()];
    await using source = await Mapper.start(base, SIZE);
    await fillChain(source, first);
    const inFront = first.compact();
    await space.reached;
    const chain = chainIn(second, jobs);
    await fillChain(source, chain);
    const merging = chain.compact();
    const names = await readdir(second);
    await chain[Symbol.asyncDispose]();
    await merging;
    expect(first.layers).toHaveLength(MERGED_MEMORY_LAYERS);
    expect(names).toHaveLength(MERGED_MEMORY_LAYERS);
    expect(await readdir(second)).toEqual(names);
    space.release();
    await inFront;
    expect(first.layers).toHaveLength(1);
    expect(log.find('warn', '')).toEqual([]);
    await first[Symbol.asyncDispose]();
  });

  test('what a later server finds, wherever a merge was cut short, is enough for a right capture', async () => {
    const own = await ownDirectory();
    const parts = join(directory, 'parts');
    await using chain = chainIn(own);
    await using source = await Mapper.start(base, SIZE);
    await fillChain(source, chain);
    await mkdir(parts);
    for (const name of await readdir(own)) await copyFile(join(own, name), join(parts, name));
    await chain.compact();
    expect(chain.layers).toHaveLength(1);
    const whole = chain.layers[0]?.path ?? '';
    const merged = `memory-0-${MERGED_MEMORY_LAYERS - 1}.layer`;
    // Before the merge has its name, between that and the removal of its parts, and in the midst of the removal.
    for (const [name, missing, expected] of [
      ['memory.merging', 0, MERGED_MEMORY_LAYERS],
      [merged, 0, 1],
      [merged, 5, 1],
    ] as const) {
      const left = await ownDirectory();
      const names = (await readdir(parts)).toSorted().slice(missing);
      for (const part of names) await copyFile(join(parts, part), join(left, part));
      await copyFile(whole, join(left, name));
      await writeFile(join(left, 'disk-0.qcow2'), 'not of the memory');
      await using found = chainIn(left, background, await findMemoryChain(left, log));
      expect(found.layers).toHaveLength(expected);
      expect(await readdir(left)).toHaveLength(expected + 1);
      expect(await digestOfRestored(found)).toBe(await source.digest());
      await source.fill(50, [1, 1_700 + missing]);
      await capture(source, found);
      expect(await digestOfRestored(found)).toBe(await source.digest());
      // As it was: the next one is found as the first.
      await source.fill(2, [1]);
      await source.fill(0, [1_700 + missing]);
    }
  });

  test('what a later server cannot remove does not keep it from the layers it finds', async () => {
    const own = await ownDirectory();
    await using source = await Mapper.start(base, SIZE);
    await using chain = chainIn(own);
    await source.fill(1, [1, 2]);
    await capture(source, chain);
    // Not a file: removing it fails.
    await mkdir(join(own, 'memory-1'));
    const found = await findMemoryChain(own, log);
    expect(found.map(({ path }) => path)).toEqual(chain.layers.map(({ path }) => path));
    expect(log.find('warn', 'could not be removed')).toHaveLength(1);
  });

  test("of layers that are not its engine's at all a capture is right as well", async () => {
    await using chain = chainIn(await ownDirectory());
    await using source = await Mapper.start(base, SIZE);
    await source.fill(1, [1, 2, 3, 1_000]);
    await capture(source, chain);
    await using stranger = await Mapper.start(base, SIZE);
    await stranger.fill(7, [2, 4, 1_900]);
    await capture(stranger, chain);
    expect(await digestOfRestored(chain)).toBe(await stranger.digest());
  });

  test('a damaged layer among several is refused before a byte is written', async () => {
    await using chain = chainIn(await ownDirectory());
    await using source = await Mapper.start(base, SIZE);
    for (const value of [1, 2, 3]) {
      await source.fill(value, [value, value + 1, 9]);
      await capture(source, chain);
    }
    await using other = await Mapper.start(base, SIZE);
    const untouched = await other.digest();
    const sources = chain.layers.map(({ path }) => path);
    const damaged = join(directory, 'damaged');
    for (const [reason, spoil] of [
      ['cut short', (path: string) => truncate(path, 100)],
      ['instead of', (path: string) => truncate(path, 2 * PAGE)],
      ['runs of the memory layer are wrong', (path: string) => overwrite(path, 32, 0xff)],
      ['not a memory layer', (path: string) => overwrite(path, 0, 0)],
    ] as const) {
      await copyFile(sources[1] ?? '', damaged);
      await spoil(damaged);
      const row = sources.toSpliced(1, 1, damaged);
      await expect(memory.run({ kind: 'apply-layers', ...facts(other), sources: row })).rejects.toThrow(reason);
      expect(await other.digest()).toBe(untouched);
    }
  });
});

async function overwrite(path: string, position: number, value: number): Promise<void> {
  await using file = await open(path, 'r+');
  await file.write(Buffer.alloc(4, value), 0, 4, position);
}
