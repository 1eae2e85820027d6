import { Counter, type Registry } from 'prom-client';
import type { LifecycleMetrics } from '../orchestrator/lifecycle-metrics.ts';

/** Registers the counters of the sandbox life cycle. */
export function createLifecycleCounters(registry: Registry): LifecycleMetrics {
  const counter = <Label extends string>(name: string, help: string, labelNames: readonly Label[]): Counter<Label> =>
    new Counter({ name, help, labelNames: [...labelNames], registers: [registry] });

  const created = counter('agentenv_sandbox_creates_total', 'Sandbox launches by outcome.', ['result', 'code']);
  const paused = counter('agentenv_sandbox_pauses_total', 'Pauses by outcome.', ['result', 'code']);
  const resumed = counter('agentenv_sandbox_resumes_total', 'Resumes by outcome.', ['result', 'code']);
  const liveCaptures = counter(
    'agentenv_sandbox_live_captures_total',
    'Captures of running sandboxes for snapshots and forks, by outcome.',
    ['operation', 'result', 'code'],
  );
  const autoPauseGivenUp = counter(
    'agentenv_sandbox_auto_pauses_given_up_total',
    'Sandboxes their timeout could not pause, however often it was tried.',
    [],
  );
  const ended = counter('agentenv_sandbox_ends_total', 'Sandboxes that ended, by reason.', ['reason']);
  const overdue = counter('agentenv_sandbox_overdue_total', 'Transitions that were older than their own deadline.', [
    'state',
  ]);
  const releaseFailed = counter(
    'agentenv_sandbox_release_failures_total',
    'Releases that failed and are tried again.',
    ['step'],
  );
  const reconciled = counter(
    'agentenv_sandbox_reconciled_total',
    'Generations a former server left behind, ended at start.',
    [],
  );
  const adopted = counter('agentenv_sandbox_adopted_total', 'Sandboxes of a former server that run on.', []);
  return {
    createSucceeded: () => created.inc({ result: 'ok', code: '' }),
    createFailed: (code) => created.inc({ result: 'error', code }),
    pauseSucceeded: () => paused.inc({ result: 'ok', code: '' }),
    pauseFailed: (code) => paused.inc({ result: 'error', code }),
    resumeSucceeded: () => resumed.inc({ result: 'ok', code: '' }),
    resumeFailed: (code) => resumed.inc({ result: 'error', code }),
    liveCaptureSucceeded: (operation) => liveCaptures.inc({ operation, result: 'ok', code: '' }),
    liveCaptureFailed: (operation, code) => liveCaptures.inc({ operation, result: 'error', code }),
    autoPauseGivenUp: () => autoPauseGivenUp.inc(),
    ended: (reason) => ended.inc({ reason }),
    overdue: (state) => overdue.inc({ state }),
    releaseFailed: (step) => releaseFailed.inc({ step }),
    reconciled: (count) => reconciled.inc(count),
    adopted: (count) => adopted.inc(count),
  };
}
