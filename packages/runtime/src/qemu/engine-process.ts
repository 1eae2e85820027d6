import { type ChildProcess, spawn } from 'node:child_process';
import { type Clock, PlatformError } from '@agentenv/core';
import { keepTail } from './stderr-tail.ts';

/** A killed process is gone within milliseconds unless its storage hangs. */
const KILL_DEADLINE_MS = 10_000;

/** A process that outlives this server. */
export interface EngineProcess extends AsyncDisposable {
  readonly pid: number | undefined;
  /** Resolves with one phrase when it has ended, or could not be started. */
  readonly exited: Promise<string>;
  /** Its last words on stderr. */
  readonly tail: () => string;
}

function exitOf(child: ChildProcess): Promise<string> {
  return new Promise((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('exit', (code, signal) => resolve(signal === null ? `exit status ${code}` : `signal ${signal}`));
  });
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
 * Starts a detached process, leader of its own session, with nothing of our environment. Disposing kills it and resolves
 * when it is gone; rejects with `deadline_exceeded` when it does not go.
 */
export function startEngineProcess(program: string, args: readonly string[], clock: Clock): EngineProcess {
  // The engine ignores SIGPIPE: when this server dies its last words are lost and nothing else.
  const stdio: ['ignore', 'ignore', 'pipe'] = ['ignore', 'ignore', 'pipe'];
  const child = spawn(program, [...args], { detached: true, cwd: '/', env: LEAN_HEAP, stdio });
  const tail = keepTail(child.stderr);
  const exited = exitOf(child);
  child.unref();
  return {
    pid: child.pid,
    exited,
    tail: tail.text,
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL');
      const late = Promise.withResolvers<never>();
      using _deadline = clock.timer(KILL_DEADLINE_MS, () => {
        late.reject(new PlatformError('deadline_exceeded', `the engine (process ${child.pid}) did not end`));
      });
      await Promise.race([exited, late.promise]);
    },
  };
}
