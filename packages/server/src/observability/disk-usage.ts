import { type Clock, callWithin, type Log, PlatformError } from '@agentenv/core';
import type { Mount } from './host-usage.ts';

/** How long a file system may take to tell its usage, milliseconds. */
const ANSWER_MS = 1000;

/** What `statfs` tells of a file system. */
export interface FileSystemFacts {
  readonly blocks: number;
  readonly bfree: number;
  /** Bytes. */
  readonly bsize: number;
}

export interface DiskUsage {
  readonly usedBytes: number;
  readonly totalBytes: number;
}

export interface DiskUsageDeps {
  readonly clock: Clock;
  readonly log: Log;
  readonly statfs: (path: string) => Promise<FileSystemFacts>;
}

interface Question {
  readonly answer: Promise<void>;
  hangs: boolean;
}

/**
 * Asks file systems for their usage, waiting a second at most: one whose server is gone hangs. It keeps a thread of the
 * process until it answers, so it is not asked again meanwhile. Until then its last figures stand; undefined when it
 * has not told any, or refuses.
 */
export function createDiskUsage({ clock, log, statfs }: DiskUsageDeps) {
  const last = new Map<string, DiskUsage>();
  const asked = new Map<string, Question>();

  async function ask(mountPoint: string, path: string): Promise<void> {
    try {
      const { blocks, bfree, bsize } = await statfs(path);
      last.set(mountPoint, { usedBytes: (blocks - bfree) * bsize, totalBytes: blocks * bsize });
    } catch (caught) {
      last.delete(mountPoint);
      log.warn({ err: caught, mountPoint }, 'a file system does not tell its usage');
    }
  }

  function question(mountPoint: string, path: string): Question {
    const open = asked.get(mountPoint);
    if (open !== undefined) return open;
    const answer = ask(mountPoint, path);
    const made = { answer, hangs: false };
    asked.set(mountPoint, made);
    void answer.then(() => asked.delete(mountPoint));
    return made;
  }

  return async ({ mountPoint }: Mount, path: string): Promise<DiskUsage | undefined> => {
    const asking = question(mountPoint, path);
    if (asking.hangs) return last.get(mountPoint);
    const bounds = { what: `the file system at ${mountPoint}`, timeoutMs: ANSWER_MS, graceMs: 0 };
    await callWithin(clock, bounds, () => asking.answer).catch((caught: unknown) => {
      if (!asking.hangs) log.warn({ err: PlatformError.fromUnknown(caught), mountPoint }, 'a file system hangs');
      asking.hangs = true;
    });
    return last.get(mountPoint);
  };
}
