import type { StageMetrics } from '../observability/metrics.ts';
import type { SandboxEntry } from './sandbox-table.ts';

/** Runs one stage of a step: it is named in logs and errors, timed, and never followed by another one after an abort. */
export type Staged = <T>(stage: string, work: () => Promise<T>) => Promise<T>;

export function createStages(
  stages: StageMetrics,
  operation: string,
  entry: SandboxEntry,
  signal: AbortSignal,
): Staged {
  return async (stage, work) => {
    entry.stage = stage;
    const timing = stages.start(operation, stage);
    try {
      const result = await work();
      signal.throwIfAborted();
      timing.end('ok');
      return result;
    } catch (error) {
      timing.end(signal.aborted ? 'canceled' : 'error');
      throw error;
    }
  };
}
