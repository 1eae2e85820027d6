import { mkdtemp, open, readdir, rm, stat, truncate } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PlatformError } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { createHeldSpace } from '../testing/held-space.ts';
import { type BackgroundJobs, createBackgroundJobs } from './background-jobs.ts';
import type { MemoryJobResult } from './memory-jobs.ts';
import { encodeLayerIndex } from './memory-layer.ts';
import type { MergeLayersJob } from './memory-layer-jobs.ts';

const MIB = 1024 * 1024;
/** Takes seconds to merge, of which nobody waits for the second. */
const LARGE = 4096 * MIB;
const SMALL = MIB;
const DAY_MS = 86_400_000;
/** Until a thread has started on a busy host. */
const START_MS = 20_000;

describe('jobs in the background', () => {
  const clock = createFakeClock();
  let directory: string;
  /** Of every job of a test. */
  let over: AbortController;
  let started: Promise<unknown>[];

  beforeEach(async () => {
    over = new AbortController();
    started = [];
    directory = await mkdtemp(join(tmpdir(), 'aenv-background-'));
  });
  afterEach(async () => {
    over.abort();
    await Promise.allSettled(started);
    await rm(directory, { recursive: true, force: true });
  });

  function run(jobs: BackgroundJobs, job: MergeLayersJob, signal = over.signal): Promise<MemoryJobResult> {
    const result = jobs.run(job, AbortSignal.any([over.signal, signal]));
    started.push(result);
    return result;
  }

  /** A merge of one layer that holds all of a memory, as holes. */
  async function mergeOf(name: string, size: number): Promise<MergeLayersJob> {
    const source = join(directory, name);
    const head = encodeLayerIndex(size, [{ offset: 0, length: size }]);
    await using file = await open(source, 'wx');
    await file.write(head);
    await truncate(source, head.length + size);
    return { kind: 'merge-layers', sources: [source], target: join(directory, `${name}.merged`), size };
  }

  test.each(['its signal', 'its deadline'])('one under way is ended by %s, and the next one runs', async (by) => {
    // Ended long before it has written so much.
    const jobs = createBackgroundJobs({ clock, freeBytes: async () => Number.MAX_SAFE_INTEGER });
    const stopping = new AbortController();
    const large = await mergeOf('large', LARGE);
    const ended = expect(run(jobs, large, stopping.signal)).rejects.toMatchObject(
      by === 'its signal' ? { message: 'enough' } : { code: 'deadline_exceeded' },
    );
    const next = run(jobs, await mergeOf('small', SMALL));
    await expect.poll(() => readdir(directory), { timeout: START_MS }).toContain('large.merged');
    if (by === 'its signal') stopping.abort(new PlatformError('canceled', 'enough'));
    else await clock.advance(DAY_MS);
    await ended;
    const { size } = await stat(large.target);
    expect(size).toBeLessThan(LARGE);
    expect((await next).bytes).toBeGreaterThan(SMALL);
    expect((await stat(large.target)).size).toBe(size);
  });

  test('one that waits for its turn is ended by its signal and never runs', async () => {
    const space = createHeldSpace();
    const jobs = createBackgroundJobs({ clock, freeBytes: space.freeBytes });
    const first = run(jobs, await mergeOf('first', SMALL));
    await space.reached;
    const stopping = new AbortController();
    const second = run(jobs, await mergeOf('second', SMALL), stopping.signal);
    stopping.abort(new PlatformError('canceled', 'enough'));
    await expect(second).rejects.toThrow('enough');
    space.release();
    expect((await first).bytes).toBeGreaterThan(SMALL);
    expect(await readdir(directory)).not.toContain('second.merged');
  });
});
