import type { LifecycleEventType } from '@agentenv/core';
import { Counter, type Registry } from 'prom-client';

/** What is counted about lifecycle events. */
export interface EventMetrics {
  published(type: LifecycleEventType): void;
}

export function createEventMetrics(registry: Registry): EventMetrics {
  const published = new Counter({
    name: 'agentenv_lifecycle_events_total',
    help: 'Lifecycle events of sandboxes.',
    labelNames: ['event'],
    registers: [registry],
  });
  return { published: (event) => published.inc({ event }) };
}
