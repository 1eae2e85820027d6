import type { LifecycleEventType } from '@agentenv/core';
import { Counter, Gauge, type Registry } from 'prom-client';
import type { CutOffReason } from './event-stream.ts';

/** What is counted about lifecycle events and those who listen to them. */
export interface EventMetrics {
  published(type: LifecycleEventType): void;
  cutOff(reason: CutOffReason): void;
  /** Says how many readers there are. */
  watchReaders(count: () => number): void;
}

export function createEventMetrics(registry: Registry): EventMetrics {
  let readers = (): number => 0;
  const published = new Counter({
    name: 'agentenv_lifecycle_events_total',
    help: 'Lifecycle events of sandboxes.',
    labelNames: ['event'],
    registers: [registry],
  });
  const cutOffs = new Counter({
    name: 'agentenv_event_stream_cut_offs_total',
    help: 'Readers of the event stream that were too slow.',
    labelNames: ['reason'],
    registers: [registry],
  });
  const gauge: Gauge = new Gauge({
    name: 'agentenv_event_stream_readers',
    help: 'Readers of the event stream.',
    registers: [registry],
    collect: () => gauge.set(readers()),
  });
  return {
    published: (event) => published.inc({ event }),
    cutOff: (reason) => cutOffs.inc({ reason }),
    watchReaders(count) {
      readers = count;
    },
  };
}
