import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { SILENT_LOG } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { expect, it } from 'vitest';
import { loadConfig } from '../config/load.ts';
import { createEventMetrics } from '../events/event-metrics.ts';
import { registerHostGauges } from './host-gauges.ts';
import { createLifecycleCounters } from './lifecycle-counters.ts';
import { createMetrics } from './metrics.ts';
import { createObservation } from './observation.ts';

const DOCUMENT = join(import.meta.dirname, '../../../../docs/observability.md');

/** What a registered metric says about itself; prom-client tells its labels to nobody else. */
interface Described {
  readonly name: string;
  readonly labelNames: readonly string[];
}

it('docs/observability.md has exactly the metrics there are, with their labels', async () => {
  const { registry } = createMetrics();
  createLifecycleCounters(registry);
  createEventMetrics(registry);
  using _gauges = registerHostGauges(registry, {
    sandboxes: () => ({}),
    pool: () => ({ ready: 0, target: 0, hits: 0, misses: 0 }),
    engines: () => ({ ready: 0, target: 0, hits: 0, misses: 0 }),
    slots: () => ({ ready: 0, inUse: 0 }),
  });
  const config = loadConfig({ file: undefined, environment: {}, workingDirectory: '/', installDirectory: '/' });
  using _observation = createObservation({ config, clock: createFakeClock(), log: SILENT_LOG, registry });
  const registered = registry
    .getMetricsAsArray()
    .map((metric) => metric as unknown as Described)
    .map(({ name, labelNames }) => [name, labelNames.join(' ')] as const);

  const rows = (await readFile(DOCUMENT, 'utf8')).matchAll(/^\| `(agentenv_\w+)` \| (.*?) \| /gm);
  const documented = [...rows].map(([, name = '', labels = '']) => [name, labels.replaceAll(/[`–]/g, '')] as const);
  expect(Object.fromEntries(documented)).toEqual(Object.fromEntries(registered));
  expect(documented).toHaveLength(registered.length);
});
