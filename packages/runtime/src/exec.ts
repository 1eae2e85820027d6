import { type ChildProcess, spawn } from 'node:child_process';
import { type Clock, PlatformError } from '@agentenv/core';

export interface Command {
  /** Program and arguments; never a shell line. */
  readonly argv: readonly [string, ...string[]];
  readonly stdin?: string;
  /** Milliseconds until the command is killed. */
  readonly deadlineMs: number;
}

/** Runs a short command of the host to its end and answers its standard output. Throws `internal` with its last words. */
export type Exec = (command: Command, signal?: AbortSignal) => Promise<string>;

const MAX_OUTPUT = 256 * 1024;
const MAX_QUOTED = 400;
/** Nothing of the server's own environment reaches a command. */
const ENVIRONMENT = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };

export function createExec({ clock }: { readonly clock: Clock }): Exec {
  return async ({ argv, stdin = '', deadlineMs }, signal) => {
    signal?.throwIfAborted();
    const [program, ...args] = argv;
    // A group of its own: an interrupt at the server's terminal does not cut off a change half-way.
    const child = spawn(program, args, { env: ENVIRONMENT, stdio: ['pipe', 'pipe', 'pipe'], detached: true });
    const done = Promise.withResolvers<string>();
    const output = { stdout: '', stderr: '' };
    const fail = (code: 'internal' | 'deadline_exceeded' | 'canceled', what: string, cause?: unknown) => {
      killGroup(child);
      const words = output.stderr.trim().slice(-MAX_QUOTED);
      const message = words === '' ? `${program} ${what}` : `${program} ${what}: ${words}`;
      done.reject(new PlatformError(code, message, { details: { argv }, cause }));
    };
    for (const name of ['stdout', 'stderr'] as const) {
      child[name].setEncoding('utf8').on('data', (text: string) => {
        output[name] = (output[name] + text).slice(-MAX_OUTPUT);
      });
    }
    const timer = clock.timer(deadlineMs, () => fail('deadline_exceeded', `did not end within ${deadlineMs} ms`));
    const onAbort = () => fail('canceled', 'was canceled', signal?.reason);
    signal?.addEventListener('abort', onAbort, { once: true });
    child.on('error', (error) => fail('internal', 'could not be started', error));
    child.on('close', (code, killedBy) => {
      if (code === 0) done.resolve(output.stdout);
      else fail('internal', killedBy === null ? `failed with status ${code}` : `was ended by ${killedBy}`);
    });
    // A command that ends without reading its input must not take the server with it; its status tells.
    child.stdin.on('error', () => {});
    child.stdin.end(stdin);
    try {
      return await done.promise;
    } finally {
      timer[Symbol.dispose]();
      signal?.removeEventListener('abort', onAbort);
    }
  };
}

/** Ends a command with everything it started; nothing when it has ended. */
function killGroup({ pid, exitCode, signalCode }: ChildProcess): void {
  if (pid === undefined || exitCode !== null || signalCode !== null) return;
  try {
    process.kill(-pid, 'SIGKILL');
  } catch (error) {
    // It ended between the look and the signal.
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error;
  }
}
