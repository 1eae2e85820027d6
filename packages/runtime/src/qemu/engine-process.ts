import { type Clock, PlatformError } from '@agentenv/core';
import type { ProcessStarter } from '../process-starter.ts';
import { endProcess, killProcess, type ProcessIdentity } from '../processes.ts';

/** Starting a process takes milliseconds, on a busy host tenths of a second. */
const START_DEADLINE_MS = 30_000;
/** A killed process is gone within milliseconds unless its storage hangs. */
const KILL_DEADLINE_MS = 10_000;

/** A process that outlives this server. */
export interface EngineProcess extends ProcessIdentity, AsyncDisposable {
  /** Resolves with one phrase when it has ended; never when its starter ended before it. */
  readonly exited: Promise<string>;
  /** Its last words on stderr, once it has ended. */
  readonly tail: () => string;
}

/**
 * One heap for all threads of an engine, and what an engine needed only to start goes back to the host: together some
 * hundred KiB of every clone.
 */
const LEAN_HEAP = {
  MALLOC_ARENA_MAX: '1',
  MALLOC_MMAP_THRESHOLD_: '32768',
  MALLOC_TRIM_THRESHOLD_: '65536',
  MALLOC_TOP_PAD_: '0',
};

/**
 * Starts a process as leader of its own session, with nothing of our environment; rejects with `create_failed`. Disposing
 * kills it and resolves when it is gone; rejects with `deadline_exceeded` when it does not go.
 */
export async function startEngineProcess(
  starter: ProcessStarter,
  argv: readonly [string, ...string[]],
  clock: Clock,
): Promise<EngineProcess> {
  const starting = starter.program(argv, LEAN_HEAP);
  const late = Promise.withResolvers<never>();
  using _deadline = clock.timer(START_DEADLINE_MS, () => {
    late.reject(new PlatformError('create_failed', 'the virtual machine was not started in time'));
    // Nobody waits for it any more.
    starting.then(killProcess).catch(() => undefined);
  });
  const { pid, startTime, ended } = await Promise.race([starting, late.promise]);
  const exited = Promise.withResolvers<string>();
  let words = '';
  ended.then(
    (end) => {
      words = end.words;
      exited.resolve(end.how);
    },
    // Nobody is left who could see it: its control socket tells.
    () => undefined,
  );
  return {
    ...{ pid, startTime, exited: exited.promise, tail: () => words },
    [Symbol.asyncDispose]: () => endProcess({ pid, startTime }, clock, KILL_DEADLINE_MS),
  };
}
