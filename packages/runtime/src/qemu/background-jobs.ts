import { stat, statfs } from 'node:fs/promises';
import { dirname } from 'node:path';
import { type Clock, PlatformError } from '@agentenv/core';
import { createGate } from './gate.ts';
import type { BackgroundJob, MemoryJobResult } from './memory-jobs.ts';
import { createLane } from './memory-thread.ts';

/** A merge of a few GiB takes minutes on a slow disk; one that takes longer keeps all others waiting for nothing. */
const DEADLINE_MS = 10 * 60_000;
/**
 * What a merge leaves free of the host's disk. On a full one the disks of all guests fail, and merging can wait: this is what
 * guests and captures that write at the same time may take until the merge has ended.
 */
export const SPARE_DISK_BYTES = 2 * 1024 ** 3;

/** Work nobody waits for, on all sandboxes of a host together one job at a time. */
export interface BackgroundJobs {
  /**
   * Runs a job in a thread of its own, which has ended when this settles, also when the signal ended it: what is half
   * written then is the caller's to remove. Rejects as the other threads do, with `no_space` before a byte is written where
   * the disk would become too full, and with `deadline_exceeded` when it takes too long.
   */
  run(job: BackgroundJob, signal: AbortSignal): Promise<MemoryJobResult>;
}

export interface BackgroundJobsDeps {
  readonly clock: Clock;
  /** Bytes that may be written to the file system of a directory. */
  readonly freeBytes?: (directory: string) => Promise<number>;
}

async function freeBytesOf(directory: string): Promise<number> {
  const { bavail, bsize } = await statfs(directory);
  return bavail * bsize;
}

/** Jobs that neither keep those of `createMemoryThread` waiting nor are hard to stop. */
export function createBackgroundJobs({ clock, freeBytes = freeBytesOf }: BackgroundJobsDeps): BackgroundJobs {
  const turns = createGate(1);

  /** The parts stay until the result is in their place. */
  async function requireSpace({ sources, target }: BackgroundJob): Promise<void> {
    const [free, ...parts] = await Promise.all([
      freeBytes(dirname(target)),
      ...sources.map(async (path) => (await stat(path)).size),
    ]);
    const needed = parts.reduce((sum, size) => sum + size, SPARE_DISK_BYTES);
    if (free < needed) {
      throw new PlatformError('no_space', "the host's disk has no room to merge layers", { details: { free, needed } });
    }
  }

  async function inOwnThread(job: BackgroundJob, signal: AbortSignal): Promise<MemoryJobResult> {
    signal.throwIfAborted();
    await using lane = createLane();
    const stop = (): void => void lane[Symbol.asyncDispose]();
    signal.addEventListener('abort', stop, { once: true });
    try {
      return await lane.run(job);
    } catch (caught) {
      signal.throwIfAborted();
      throw caught;
    } finally {
      signal.removeEventListener('abort', stop);
    }
  }

  return {
    async run(job, signal) {
      using _turn = await turns.enter(signal);
      await requireSpace(job);
      const late = new AbortController();
      const expire = () => late.abort(new PlatformError('deadline_exceeded', 'layers were not merged in time'));
      using _deadline = clock.timer(DEADLINE_MS, expire);
      // Awaited here: the turn and the deadline end with this block.
      const result = await inOwnThread(job, AbortSignal.any([signal, late.signal]));
      return result;
    },
  };
}
