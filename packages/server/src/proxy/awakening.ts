import { type Clock, callWithin, type Log, PlatformError } from '@agentenv/core';
import type { Orchestrator } from '../orchestrator/orchestrator.ts';
import type { DataPlaneProblem } from './answers.ts';

/** How long a request waits for the resume it asked for, milliseconds (agentenv.md section 15.3). */
const AUTO_RESUME_TIMEOUT_MS = 60_000;

/** What stands in the way, where its requests are told more than that it failed. */
const PROBLEMS: ReadonlyMap<PlatformError['code'], ResumeProblem> = new Map([
  ['capacity', 'resume-refused-by-limit'],
  ['extension_rejected', 'resume-refused-by-extension'],
  ['extension_failed', 'resume-failed-by-extension'],
]);
type ResumeProblem = Extract<DataPlaneProblem['kind'], `resume-${string}`>;

export interface AwakeningDependencies {
  readonly orchestrator: Pick<Orchestrator, 'wake' | 'target'>;
  readonly clock: Clock;
  readonly log: Log;
}

/** Resumes a sandbox for a request that passed its token checks; resolves with what stands in the way. Never rejects. */
export type Awaken = (sandboxId: string) => Promise<DataPlaneProblem | undefined>;

export function createAwakening({ orchestrator, clock, log }: AwakeningDependencies): Awaken {
  return async (sandboxId) => {
    let timedOut = false;
    const bounds = { what: 'the resume by a request', timeoutMs: AUTO_RESUME_TIMEOUT_MS, graceMs: 0 };
    try {
      await callWithin(clock, bounds, async (late) => {
        late.addEventListener('abort', () => {
          timedOut = true;
        });
        // It goes on for those who come later.
        await orchestrator.wake(sandboxId);
      });
      return undefined;
    } catch (error) {
      const { code } = PlatformError.fromUnknown(error);
      // Why is logged where it failed; this may be one of very many.
      log.debug({ sandboxId, code }, 'a request could not resume its sandbox');
      if (timedOut) return { kind: 'resume-timed-out' };
      const { kind } = orchestrator.target(sandboxId);
      if (kind === 'not-found' || kind === 'not-proxyable') return { kind };
      return { kind: PROBLEMS.get(code) ?? 'resume-failed' };
    }
  };
}
