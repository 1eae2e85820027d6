import { readFile } from 'node:fs/promises';
import type { Clock, Log } from '@agentenv/core';

const CHECK_MS = 5_000;
/** Part of the host's memory below which what was made in advance is given up, before creates are refused for it. */
const LOW = 0.12;
/** Part above which it is made again. */
const RECOVERED = 0.18;

/** Free part of the host's memory, 0–1, from the text of `/proc/meminfo`; 1 when it does not say. */
export function freeMemory(meminfo: string): number {
  const value = (key: string): number => Number(new RegExp(`^${key}:\\s+(\\d+) kB`, 'm').exec(meminfo)?.[1]);
  const part = value('MemAvailable') / value('MemTotal');
  return Number.isFinite(part) ? part : 1;
}

/** Calls `onLow` when memory gets short and `onRecovered` when it is no longer. */
export function watchMemory(options: {
  readonly clock: Clock;
  readonly log: Log;
  readonly onLow: () => void;
  readonly onRecovered: () => void;
}): Disposable {
  const { clock, log } = options;
  let low = false;
  let disposed = false;
  let timer: Disposable;

  async function check(): Promise<void> {
    const free = freeMemory(await readFile('/proc/meminfo', 'utf8'));
    if (disposed) return;
    if (!low && free < LOW) {
      low = true;
      log.warn({ free }, 'memory is short: the pool is given up');
      options.onLow();
    } else if (low && free > RECOVERED) {
      low = false;
      log.info({ free }, 'memory has recovered: the pool is filled again');
      options.onRecovered();
    }
  }

  function schedule(): void {
    if (disposed) return;
    timer = clock.timer(CHECK_MS, () => {
      check()
        .catch((error: unknown) => log.error({ error }, 'the memory of the host could not be read'))
        .finally(schedule);
    });
  }
  schedule();
  return {
    [Symbol.dispose]() {
      disposed = true;
      timer[Symbol.dispose]();
    },
  };
}
