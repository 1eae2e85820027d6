import { PlatformError } from '@agentenv/core';
import type { components } from '@agentenv/protocol/control-plane';
import type { MetricSample, SandboxMetrics } from '../observability/sandbox-metrics.ts';
import type { Orchestrator } from '../orchestrator/orchestrator.ts';
import type { Handlers } from './operations.ts';

type SandboxMetric = components['schemas']['SandboxMetric'];

/** Handlers of what sandboxes use (contract e2b.md section 6.7). */
export function createMetricsHandlers(deps: {
  readonly orchestrator: Pick<Orchestrator, 'get'>;
  readonly sandboxMetrics: Pick<SandboxMetrics, 'range' | 'newest'>;
}): Pick<Handlers, 'getSandboxMetrics' | 'getSandboxesMetrics'> {
  const { orchestrator, sandboxMetrics } = deps;
  return {
    getSandboxMetrics: async ({ path, query }) => {
      const { id } = orchestrator.get(path.sandboxID);
      const { start, end } = query;
      if (start !== undefined && end !== undefined && end < start) {
        throw new PlatformError('invalid_argument', 'end must not be before start');
      }
      const from = start === undefined ? 0 : start * 1000;
      // The whole second belongs to the range: clients round what they ask for.
      const to = end === undefined ? Number.POSITIVE_INFINITY : end * 1000 + 999;
      const samples = await sandboxMetrics.range(id, from, to);
      return { status: 200, body: samples.map(toSandboxMetric) };
    },

    getSandboxesMetrics: async ({ query }) => {
      const samples = await sandboxMetrics.newest(query.sandbox_ids);
      const sandboxes = Object.fromEntries([...samples].map(([id, sample]) => [id, toSandboxMetric(sample)]));
      return { status: 200, body: { sandboxes } };
    },
  };
}

function toSandboxMetric({ at, ...sample }: MetricSample): SandboxMetric {
  return { timestamp: new Date(at).toISOString(), timestampUnix: Math.floor(at / 1000), ...sample };
}
