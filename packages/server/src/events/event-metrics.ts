import type { LifecycleEventType } from '@agentenv/core';
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import type { CutOffReason } from './event-stream.ts';
import type { AttemptOutcome, DeadLetterReason } from './webhook-queue.ts';

/** What is counted about lifecycle events and those who listen to them. */
export interface EventMetrics {
  published(type: LifecycleEventType): void;
  cutOff(reason: CutOffReason): void;
  /** Says how many readers there are. */
  watchReaders(count: () => number): void;
  readonly webhooks: WebhookMetrics;
}

/** What is counted of every webhook, by its id. */
interface WebhookMetrics {
  attempt(webhook: string, outcome: AttemptOutcome['kind']): void;
  /** `seconds`: from the event to its acceptance. */
  accepted(webhook: string, seconds: number): void;
  dead(webhook: string, reason: DeadLetterReason): void;
  /** Says how many events wait for it. */
  watchPending(webhook: string, count: () => number): void;
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
    webhooks: createWebhookMetrics(registry),
  };
}

function createWebhookMetrics(registry: Registry): WebhookMetrics {
  const pending = new Map<string, () => number>();
  const attempts = new Counter({
    name: 'agentenv_webhook_attempts_total',
    help: 'Attempts to send lifecycle events to webhooks, by outcome.',
    labelNames: ['webhook', 'result'],
    registers: [registry],
  });
  const delivery = new Histogram({
    name: 'agentenv_webhook_delivery_seconds',
    help: 'Time from a lifecycle event to its acceptance by a webhook.',
    labelNames: ['webhook'],
    buckets: [0.01, 0.05, 0.2, 1, 5, 30, 120, 600],
    registers: [registry],
  });
  const dead = new Counter({
    name: 'agentenv_webhook_dead_letters_total',
    help: 'Lifecycle events that are not sent to a webhook any more, by reason.',
    labelNames: ['webhook', 'reason'],
    registers: [registry],
  });
  const gauge: Gauge<'webhook'> = new Gauge({
    name: 'agentenv_webhook_pending_events',
    help: 'Lifecycle events that wait for a webhook.',
    labelNames: ['webhook'],
    registers: [registry],
    collect() {
      for (const [webhook, count] of pending) gauge.set({ webhook }, count());
    },
  });
  return {
    attempt: (webhook, result) => attempts.inc({ webhook, result }),
    accepted: (webhook, seconds) => delivery.observe({ webhook }, seconds),
    dead: (webhook, reason) => dead.inc({ webhook, reason }),
    watchPending(webhook, count) {
      pending.set(webhook, count);
    },
  };
}
