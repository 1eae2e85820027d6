import { Worker } from 'node:worker_threads';
import { type Answering, createAnswering, type Numbered } from './answering.ts';

export interface WorkerThreadOptions {
  readonly program: URL;
  readonly name: string;
  /** How errors call it, after `the`. */
  readonly called: string;
}

/** A worker thread that answers requests. */
export function createWorkerThread<Request extends Numbered, Answer extends Numbered>(
  options: WorkerThreadOptions,
): Answering<Request, Answer> {
  const { program, name, called } = options;
  return createAnswering(called, (onAnswer, onEnd) => {
    // The program's own options may be about its main module.
    const worker = new Worker(program, { name, execArgv: [] });
    worker.on('message', onAnswer);
    worker.on('error', (cause) => onEnd('died', cause));
    worker.on('exit', () => onEnd('ended'));
    return {
      send: (request) => worker.postMessage(request),
      hold: (needed) => (needed ? worker.ref() : worker.unref()),
      end: () => worker.terminate(),
    };
  });
}
