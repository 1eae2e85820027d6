import { Worker } from 'node:worker_threads';
import { type Clock, PlatformError } from '@agentenv/core';
import type { ExecAnswer, ExecRequest } from './exec-worker.ts';

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

interface Run {
  readonly answer: Promise<ExecAnswer>;
  /** Ends the command; the answer comes at once. */
  end(): void;
}

/**
 * A thread that starts commands: whoever starts a process stands still until it runs, which takes tens of milliseconds on
 * a busy host, and the thread that answers requests must not. It begins with the first command and keeps nobody alive.
 */
function createExecThread(): (argv: Command['argv'], stdin: string) => Run {
  const waiting = new Map<number, PromiseWithResolvers<ExecAnswer>>();
  let worker: Worker | undefined;
  let nextId = 1;

  function start(): Worker {
    // The program's own options may be about its main module.
    const options = { name: 'aenv-exec', execArgv: [] };
    const started = new Worker(new URL('./exec-worker.ts', import.meta.url), options);
    started.on('message', (answer: ExecAnswer) => {
      waiting.get(answer.id)?.resolve(answer);
      waiting.delete(answer.id);
      if (waiting.size === 0) started.unref();
    });
    const failAll = (cause?: unknown) => {
      if (worker === started) worker = undefined;
      for (const { reject } of waiting.values()) {
        reject(new PlatformError('internal', 'the thread that starts commands ended', { cause }));
      }
      waiting.clear();
    };
    started.on('error', failAll);
    started.on('exit', () => failAll());
    return started;
  }

  return (argv, stdin) => {
    worker ??= start();
    const thread = worker;
    thread.ref();
    const send = (request: ExecRequest) => thread.postMessage(request);
    const id = nextId++;
    const answer = Promise.withResolvers<ExecAnswer>();
    waiting.set(id, answer);
    send({ id, argv, stdin });
    return { answer: answer.promise, end: () => send({ id, end: true }) };
  };
}

export function createExec({ clock }: { readonly clock: Clock }): Exec {
  const run = createExecThread();
  return async ({ argv, stdin = '', deadlineMs }, signal) => {
    signal?.throwIfAborted();
    const { answer, end } = run(argv, stdin);
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
