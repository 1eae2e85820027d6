import { readlinkSync } from 'node:fs';
import { setPriority } from 'node:os';
import { basename } from 'node:path';
import { parentPort } from 'node:worker_threads';
import { type BackgroundJob, type MemoryJob, type MemoryJobResult, runMemoryJob } from './memory-jobs.ts';
import { createScratch } from './scratch.ts';

export interface WorkerRequest {
  readonly id: number;
  readonly job: MemoryJob | BackgroundJob;
}

export type WorkerAnswer =
  | { readonly id: number; readonly result: MemoryJobResult }
  /** `code` is the system's name of the failure, where it has one. */
  | { readonly id: number; readonly message: string; readonly code: string | undefined };

const scratch = createScratch();

function answer({ id, job }: WorkerRequest): WorkerAnswer {
  try {
    return { id, result: runMemoryJob(job, scratch) };
  } catch (caught) {
    if (!(caught instanceof Error)) return { id, message: String(caught), code: undefined };
    const code = 'code' in caught && typeof caught.code === 'string' ? caught.code : undefined;
    return { id, message: caught.message, code };
  }
}

/** Copying and hashing take whole processors for a second; whoever answers requests meanwhile goes first. */
const NICE = 5;
// The kernel knows threads by numbers like those of processes.
setPriority(Number(basename(readlinkSync('/proc/thread-self'))), NICE);

parentPort?.on('message', (request: WorkerRequest) => parentPort?.postMessage(answer(request)));
