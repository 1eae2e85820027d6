import { Worker } from 'node:worker_threads';
import { PlatformError } from '@agentenv/core';
import { hostFault } from './host-fault.ts';
import type { BackgroundJob, MemoryJob, MemoryJobResult } from './memory-jobs.ts';
import type { WorkerAnswer, WorkerRequest } from './memory-worker.ts';

/** Threads for everything that reads, writes or hashes guest memory and disk layers. */
export interface MemoryThread extends AsyncDisposable {
  /** Rejects with `internal` when the job fails, `no_space` when the disk is full, `unavailable` after disposal. */
  run(job: MemoryJob): Promise<MemoryJobResult>;
}

/** Two: a long digest of one sandbox does not keep another one waiting for its few megabytes. */
const THREADS = 2;

/** A worker thread whose jobs run one after the other. */
interface Lane extends AsyncDisposable {
  readonly waiting: number;
  run(job: MemoryJob | BackgroundJob): Promise<MemoryJobResult>;
  /** Has the thread running before it is needed. */
  prepare(): void;
}

interface Waiter {
  readonly resolve: (result: MemoryJobResult) => void;
  readonly reject: (error: PlatformError) => void;
}

/** Jobs go where the fewest wait; the first one starts all threads. */
export function createMemoryThread(): MemoryThread {
  const lanes = Array.from({ length: THREADS }, createLane);
  return {
    run(job) {
      for (const lane of lanes) lane.prepare();
      const [idlest] = lanes.toSorted((left, right) => left.waiting - right.waiting);
      if (idlest === undefined) throw new Error('unreachable: there are threads');
      return idlest.run(job);
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(lanes.map((lane) => lane[Symbol.asyncDispose]()));
    },
  };
}

/** Starts its thread with the first job and again after the thread died; an idle thread does not keep the process alive. */
export function createLane(): Lane {
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
    else waiter?.reject(failureOf(answer));
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
    get waiting() {
      return waiters.size;
    },
    prepare() {
      if (disposed || worker !== undefined) return;
      worker = start();
      worker.unref();
    },
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

function failureOf({ message, code }: Extract<WorkerAnswer, { readonly message: string }>): PlatformError {
  const cause = Object.assign(new Error(message), code === undefined ? {} : { code });
  const fault = hostFault(cause, message);
  return fault.code === 'no_space' ? fault : new PlatformError('internal', `memory job failed: ${message}`);
}
