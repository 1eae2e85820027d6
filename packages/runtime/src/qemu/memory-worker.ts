import { parentPort } from 'node:worker_threads';
import { type MemoryJob, type MemoryJobResult, runMemoryJob } from './memory-jobs.ts';

export interface WorkerRequest {
  readonly id: number;
  readonly job: MemoryJob;
}

export type WorkerAnswer =
  | { readonly id: number; readonly result: MemoryJobResult }
  | { readonly id: number; readonly message: string };

function answer({ id, job }: WorkerRequest): WorkerAnswer {
  try {
    return { id, result: runMemoryJob(job) };
  } catch (caught) {
    return { id, message: caught instanceof Error ? caught.message : String(caught) };
  }
}

parentPort?.on('message', (request: WorkerRequest) => parentPort?.postMessage(answer(request)));
