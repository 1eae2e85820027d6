import { Worker } from 'node:worker_threads';
import { PlatformError } from '@agentenv/core';

/** What goes to and comes from a thread: an answer has the number of the request it is to. */
interface Numbered {
  readonly id: number;
}

/** A worker thread that gives each request one answer. */
export interface WorkerThread<Request extends Numbered, Answer extends Numbered> extends AsyncDisposable {
  /** Requests without an answer yet. */
  readonly waiting: number;
  /** Has the thread running before it is needed. */
  prepare(): void;
  /**
   * Makes a request. Rejects with `internal` when the thread ends before its answer, `unavailable` after disposal. `tell`
   * sends the thread more about it, which gets no answer of its own.
   */
  call(request: (id: number) => Request): {
    readonly answer: Promise<Answer>;
    tell(more: (id: number) => Request): void;
  };
}

export interface WorkerThreadOptions {
  readonly program: URL;
  readonly name: string;
  /** How errors call it, after `the`. */
  readonly called: string;
}

/** Starts its thread with the first request and again after the thread died; an idle thread does not keep the process alive. */
export function createWorkerThread<Request extends Numbered, Answer extends Numbered>(
  options: WorkerThreadOptions,
): WorkerThread<Request, Answer> {
  const { program, name, called } = options;
  const unanswered = new Map<number, PromiseWithResolvers<Answer>>();
  let worker: Worker | undefined;
  let nextId = 1;
  let disposed = false;

  function failAll(error: PlatformError): void {
    for (const { reject } of unanswered.values()) reject(error);
    unanswered.clear();
  }

  function onAnswer(answer: Answer): void {
    unanswered.get(answer.id)?.resolve(answer);
    unanswered.delete(answer.id);
    if (unanswered.size === 0) worker?.unref();
  }

  function start(): Worker {
    // The program's own options may be about its main module.
    const started = new Worker(program, { name, execArgv: [] });
    started.on('message', onAnswer);
    started.on('error', (cause) => failAll(new PlatformError('internal', `the ${called} died`, { cause })));
    started.on('exit', () => {
      if (worker === started) worker = undefined;
      failAll(new PlatformError('internal', `the ${called} ended`));
    });
    return started;
  }

  return {
    get waiting() {
      return unanswered.size;
    },
    prepare() {
      if (disposed || worker !== undefined) return;
      worker = start();
      worker.unref();
    },
    call(request) {
      const reply = Promise.withResolvers<Answer>();
      if (disposed) {
        reply.reject(new PlatformError('unavailable', `the ${called} is closed`));
        return { answer: reply.promise, tell() {} };
      }
      worker ??= start();
      worker.ref();
      const thread = worker;
      const id = nextId++;
      unanswered.set(id, reply);
      thread.postMessage(request(id));
      return { answer: reply.promise, tell: (more) => thread.postMessage(more(id)) };
    },
    async [Symbol.asyncDispose]() {
      disposed = true;
      failAll(new PlatformError('unavailable', `the ${called} is closed`));
      await worker?.terminate();
    },
  };
}
