import { Worker } from 'node:worker_threads';
import { PlatformError } from '@agentenv/core';
import type { MemoryJob, MemoryJobResult } from './memory-jobs.ts';
import type { WorkerAnswer, WorkerRequest } from './memory-worker.ts';

/** One worker thread for everything that reads or hashes guest memory and disk layers; jobs run one after the other. */
export interface MemoryThread extends AsyncDisposable {
  /** Rejects with `internal` when the job fails, `unavailable` when the thread is disposed. */
  run(job: MemoryJob): Promise<MemoryJobResult>;
}

interface Waiter {
  readonly resolve: (result: MemoryJobResult) => void;
  readonly reject: (error: PlatformError) => void;
}

/** Starts its thread with the first job and again after the thread died; an idle thread does not keep the process alive. */
export function createMemoryThread(): MemoryThread {
  const waiters = new Map<number, Waiter>();
  let worker: Worker | undefined;
  let nextId = 1;
  let disposed = false;

  function failAll(error: PlatformError): void {
    for (const waiter of waiters.values()) waiter.reject(error);
    waiters.clear();
  }

  function onAnswer(answer: WorkerAnswer): void {
    const waiter = waiters.get(answer.id);
    waiters.delete(answer.id);
    if ('result' in answer) waiter?.resolve(answer.result);
    else waiter?.reject(new PlatformError('internal', `memory job failed: ${answer.message}`));
    if (waiters.size === 0) worker?.unref();
  }

  function start(): Worker {
    const started = new Worker(new URL('./memory-worker.ts', import.meta.url), { name: 'aenv-memory' });
    started.on('message', onAnswer);
    started.on('error', (cause) => failAll(new PlatformError('internal', 'the memory thread died', { cause })));
    started.on('exit', () => {
      if (worker === started) worker = undefined;
      failAll(new PlatformError('internal', 'the memory thread ended'));
    });
    return started;
  }

  return {
    run(job) {
      if (disposed) return Promise.reject(new PlatformError('unavailable', 'the memory thread is closed'));
      worker ??= start();
      worker.ref();
      const request: WorkerRequest = { id: nextId++, job };
      const { promise, resolve, reject } = Promise.withResolvers<MemoryJobResult>();
      waiters.set(request.id, { resolve, reject });
      worker.postMessage(request);
      return promise;
    },
    async [Symbol.asyncDispose]() {
      disposed = true;
      failAll(new PlatformError('unavailable', 'the memory thread is closed'));
      await worker?.terminate();
    },
  };
}
