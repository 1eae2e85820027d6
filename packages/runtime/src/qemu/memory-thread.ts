import { PlatformError } from '@agentenv/core';
import type { Answering } from '../answering.ts';
import { createWorkerThread } from '../worker-thread.ts';
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
interface Lane extends Pick<Answering<WorkerRequest, WorkerAnswer>, 'waiting' | 'prepare'>, AsyncDisposable {
  run(job: MemoryJob | BackgroundJob): Promise<MemoryJobResult>;
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

/** Starts its thread with the first job and again after the thread died. */
export function createLane(): Lane {
  const thread = createWorkerThread<WorkerRequest, WorkerAnswer>({
    program: new URL('./memory-worker.ts', import.meta.url),
    ...{ name: 'aenv-memory', called: 'memory thread' },
  });
  return {
    get waiting() {
      return thread.waiting;
    },
    prepare: () => thread.prepare(),
    async run(job) {
      const answer = await thread.call((id) => ({ id, job })).answer;
      if ('result' in answer) return answer.result;
      throw failureOf(answer);
    },
    [Symbol.asyncDispose]: () => thread[Symbol.asyncDispose](),
  };
}

function failureOf({ message, code }: Extract<WorkerAnswer, { readonly message: string }>): PlatformError {
  const cause = Object.assign(new Error(message), code === undefined ? {} : { code });
  const fault = hostFault(cause, message);
  return fault.code === 'no_space' ? fault : new PlatformError('internal', `memory job failed: ${message}`);
}
