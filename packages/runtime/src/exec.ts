import { type Clock, PlatformError } from '@agentenv/core';
import type { ExecAnswer, ExecRequest } from './exec-worker.ts';
import { createWorkerThread } from './worker-thread.ts';

export interface Command {
  /** Program and arguments; never a shell line. */
  readonly argv: readonly [string, ...string[]];
  readonly stdin?: string;
  /** Milliseconds until the command is killed. */
  readonly deadlineMs: number;
}

/** Runs a short command of the host to its end and answers its standard output. Throws `internal` with its last words. */
export type Exec = (command: Command, signal?: AbortSignal) => Promise<string>;

const MAX_QUOTED = 400;

/**
 * Commands are started by a thread: whoever starts a process stands still until it runs, which takes tens of milliseconds on
 * a busy host, and the thread that answers requests must not.
 */
export function createExec({ clock }: { readonly clock: Clock }): Exec {
  const thread = createWorkerThread<ExecRequest, ExecAnswer>({
    program: new URL('./exec-worker.ts', import.meta.url),
    ...{ name: 'aenv-exec', called: 'thread that starts commands' },
  });
  return async ({ argv, stdin = '', deadlineMs }, signal) => {
    signal?.throwIfAborted();
    const { answer, tell } = thread.call((id) => ({ id, argv, stdin }));
    const end = () => tell((id) => ({ id, end: true }));
    let ended: { readonly code: 'deadline_exceeded' | 'canceled'; readonly what: string } | undefined;
    const timer = clock.timer(deadlineMs, () => {
      ended ??= { code: 'deadline_exceeded', what: `did not end within ${deadlineMs} ms` };
      end();
    });
    const onAbort = () => {
      ended ??= { code: 'canceled', what: 'was canceled' };
      end();
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      const { stdout, stderr, failure } = await answer;
      if (failure === undefined) return stdout;
      const words = stderr.trim().slice(-MAX_QUOTED);
      const message = `${argv[0]} ${ended?.what ?? failure}${words === '' ? '' : `: ${words}`}`;
      throw new PlatformError(ended?.code ?? 'internal', message, { details: { argv }, cause: signal?.reason });
    } finally {
      timer[Symbol.dispose]();
      signal?.removeEventListener('abort', onAbort);
    }
  };
}
