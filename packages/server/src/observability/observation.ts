import type { Clock, Log } from '@agentenv/core';
import { Counter, Gauge, type Registry } from 'prom-client';
import type { Config } from '../config/schema.ts';
import { createSandboxLogs, DEFAULT_SANDBOX_LOG_LIMITS, type SandboxLogs } from './sandbox-logs.ts';
import { createSandboxMetrics, DEFAULT_SANDBOX_METRICS_CONFIG, type SandboxMetrics } from './sandbox-metrics.ts';

/** What is kept of sandboxes for their owners, in memory. */
export interface Observation extends Disposable {
  readonly sandboxLogs: SandboxLogs;
  readonly sandboxMetrics: SandboxMetrics;
}

/** Creates both with the limits of the configuration and registers what they cost. */
export function createObservation(deps: {
  readonly config: Pick<
    Config,
    | 'observability.sandbox_metrics_interval_secs'
    | 'observability.sandbox_metrics_idle_interval_secs'
    | 'observability.sandbox_logs_retention_secs'
  >;
  readonly clock: Clock;
  readonly log: Log;
  readonly registry: Registry;
}): Observation {
  const { config, clock, log, registry } = deps;
  const sandboxLogs = createSandboxLogs({
    clock,
    limits: {
      ...DEFAULT_SANDBOX_LOG_LIMITS,
      retentionMs: config['observability.sandbox_logs_retention_secs'] * 1000,
    },
  });
  const samples = new Counter({
    name: 'agentenv_sandbox_metric_samples_total',
    help: 'Samples of what sandboxes use, by outcome.',
    labelNames: ['result'],
    registers: [registry],
  });
  const sandboxMetrics = createSandboxMetrics({
    clock,
    log,
    config: {
      ...DEFAULT_SANDBOX_METRICS_CONFIG,
      intervalMs: config['observability.sandbox_metrics_interval_secs'] * 1000,
      idleIntervalMs: config['observability.sandbox_metrics_idle_interval_secs'] * 1000,
    },
    onSample: (result) => samples.inc({ result }),
  });
  registerLogGauges(registry, sandboxLogs);
  return {
    sandboxLogs,
    sandboxMetrics,
    [Symbol.dispose]() {
      sandboxMetrics[Symbol.dispose]();
      sandboxLogs[Symbol.dispose]();
    },
  };
}

function registerLogGauges(registry: Registry, logs: SandboxLogs): void {
  const gauge = (name: string, help: string, read: () => number): void => {
    const created: Gauge = new Gauge({ name, help, registers: [registry], collect: () => created.set(read()) });
  };
  gauge('agentenv_sandbox_log_entries', 'Entries in the logs of sandboxes.', () => logs.status().entries);
  gauge('agentenv_sandbox_log_bytes', 'Memory of these entries, as estimated.', () => logs.status().bytes);
  gauge(
    'agentenv_sandbox_log_dropped_entries',
    'Entries dropped since the start because there were too many.',
    () => logs.status().dropped,
  );
}
