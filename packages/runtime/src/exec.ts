import { type Clock, PlatformError } from '@agentenv/core';
import { createProcessStarter, type ProcessStarter } from './process-starter.ts';

export interface Command {
  /** Program and arguments; never a shell line. */
  readonly argv: readonly [string, ...string[]];
  readonly stdin?: string;
  /** Milliseconds until the command is killed. */
  readonly deadlineMs: number;
  /** Characters kept of its standard output, the last ones; 256 Ki unless given. */
  readonly maxOutput?: number;
}

/** Runs a short command of the host to its end and answers its standard output. Throws `internal` with its last words. */
export type Exec = (command: Command, signal?: AbortSignal) => Promise<string>;

const MAX_QUOTED = 400;
/** Whoever is told to end a command that is late has done so by then. */
const LATE_MS = 5_000;

export interface ExecDeps {
  readonly clock: Clock;
  /** One of its own unless given. */
  readonly starter?: ProcessStarter;
}

export function createExec({ clock, starter = createProcessStarter() }: ExecDeps): Exec {
  return async ({ argv, stdin = '', deadlineMs, maxOutput }, signal) => {
    signal?.throwIfAborted();
    const command = starter.command({ argv, stdin, ...(maxOutput === undefined ? {} : { maxOutput }) });
    let ended: { readonly code: 'deadline_exceeded' | 'canceled'; readonly what: string } | undefined;
    const timer = clock.timer(deadlineMs, () => {
      ended ??= { code: 'deadline_exceeded', what: `did not end within ${deadlineMs} ms` };
      command.end();
    });
    const onAbort = () => {
      ended ??= { code: 'canceled', what: 'was canceled' };
      command.end();
    };
    const hung = Promise.withResolvers<never>();
    const late = clock.timer(deadlineMs + LATE_MS, () => {
      hung.reject(new PlatformError('deadline_exceeded', `${argv[0]} could not be ended`, { details: { argv } }));
    });
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      const { stdout, stderr, failure } = await Promise.race([command.ended, hung.promise]);
      if (failure === undefined) return stdout;
      const words = stderr.trim().slice(-MAX_QUOTED);
      const message = `${argv[0]} ${ended?.what ?? failure}${words === '' ? '' : `: ${words}`}`;
      throw new PlatformError(ended?.code ?? 'internal', message, { details: { argv }, cause: signal?.reason });
    } finally {
      timer[Symbol.dispose]();
      late[Symbol.dispose]();
      signal?.removeEventListener('abort', onAbort);
    }
  };
}
