import { createHash } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { type Clock, callWithin, type LifecycleEventType, type Log, type Rng, type UuidSource } from '@agentenv/core';
import { exchange } from '../hooks/exchange.ts';
import { createDeadLetters, DEFAULT_DEAD_LETTER_LIMITS } from './dead-letters.ts';
import type { EventBus, EventMessage } from './event-bus.ts';
import type { EventMetrics } from './event-metrics.ts';
import { DEFAULT_OUTBOX_LIMITS, openOutbox } from './outbox.ts';
import {
  type AttemptOutcome,
  createWebhookQueue,
  DEFAULT_WEBHOOK_QUEUE_LIMITS,
  type DeadLetter,
  type WebhookQueue,
} from './webhook-queue.ts';
import { signAttempt } from './webhook-signature.ts';

export interface WebhookTarget {
  readonly url: string;
  readonly secret: string;
}

export interface WebhookDependencies {
  readonly targets: readonly WebhookTarget[];
  /** Which events are sent. */
  readonly types: readonly LifecycleEventType[];
  /** Longest attempt, milliseconds. */
  readonly timeoutMs: number;
  /** Attempts per event. */
  readonly attempts: number;
  /** Made if it is not there; belongs to nobody else. */
  readonly directory: string;
  readonly bus: Pick<EventBus, 'subscribe'>;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly ids: Pick<UuidSource, 'deliveryId'>;
  readonly log: Log;
  readonly metrics: EventMetrics['webhooks'];
}

/** Disposing waits shortly for what can be sent at once. */
export interface Webhooks extends AsyncDisposable {
  /** Resolves when the next server would send what was published so far, or when that could not be written down. */
  recorded(): Promise<void>;
}

interface Webhook {
  readonly id: string;
  readonly queue: WebhookQueue;
}

export const OUTBOX_FILE = 'outbox.jsonl';
/** How long the end waits for events that can be sent at once, milliseconds; the others are sent by the next server. */
const END_MS = 3_000;

/** The name of a webhook in headers, log and metrics: a URL may have a secret in it. */
export function webhookId(url: string): string {
  return `wh_${createHash('sha256').update(url).digest('hex').slice(0, 20)}`;
}

/** One attempt. Redirects are answers like any other that is not 2xx; bodies are not read. */
function sender(
  { url, secret }: WebhookTarget,
  { clock, ids, timeoutMs }: WebhookDependencies,
): (message: EventMessage, signal: AbortSignal) => Promise<AttemptOutcome> {
  const id = webhookId(url);
  const place = new URL(url);
  return async ({ id: eventId, json: body }, signal) => {
    const headers = signAttempt(secret, {
      ...{ webhookId: id, eventId, body },
      deliveryId: ids.deliveryId(),
      at: clock.now(),
    });
    const request = { url: place, body, headers, answer: 'ignored', maxBytes: 0 } as const;
    try {
      const bounds = { what: 'it', timeoutMs, graceMs: 0, signal };
      const { status } = await callWithin(clock, bounds, (aborted) => exchange(request, aborted));
      if (status >= 200 && status < 300) return { kind: 'accepted' };
      return { kind: 'refused', error: `it answered ${status}` };
    } catch (error) {
      signal.throwIfAborted();
      return { kind: 'failed', error: error instanceof Error ? error.message : String(error) };
    }
  };
}

/**
 * Sends lifecycle events to the webhooks of the configuration, beginning with what a former server had left. Rejects when
 * its directory cannot be used.
 */
export async function openWebhooks(deps: WebhookDependencies): Promise<Webhooks> {
  const { bus, clock, log, metrics, rng } = deps;
  await mkdir(deps.directory, { recursive: true, mode: 0o700 });
  await using undo = new AsyncDisposableStack();
  const deadLetters = undo.use(
    createDeadLetters({ directory: deps.directory, clock, log, limits: DEFAULT_DEAD_LETTER_LIMITS }),
  );
  const outbox = undo.use(
    await openOutbox({ path: join(deps.directory, OUTBOX_FILE), log, limits: DEFAULT_OUTBOX_LIMITS }),
  );

  function bury(webhook: string, message: EventMessage, dead: DeadLetter): void {
    metrics.dead(webhook, dead.reason);
    deadLetters.append(webhook, message, dead);
    outbox.settle(message.id, webhook);
  }

  const webhooks = deps.targets.map((target): Webhook => {
    const id = webhookId(target.url);
    const queue = createWebhookQueue({
      ...{ id, clock, rng, log },
      send: sender(target, deps),
      limits: { ...DEFAULT_WEBHOOK_QUEUE_LIMITS, attempts: deps.attempts },
      onAttempt: (kind) => metrics.attempt(id, kind),
      onAccepted(message) {
        metrics.accepted(id, Math.max(0, clock.now() - message.at) / 1000);
        outbox.settle(message.id, id);
      },
      onDead: (message, dead) => bury(id, message, dead),
    });
    undo.use(queue);
    metrics.watchPending(id, () => queue.pending);
    log.info({ webhook: id, origin: new URL(target.url).origin }, 'lifecycle events are sent to a webhook');
    return { id, queue };
  });

  for (const { message, webhooks: waiting } of outbox.left) {
    for (const id of waiting) {
      const webhook = webhooks.find((candidate) => candidate.id === id);
      if (webhook !== undefined) webhook.queue.offer(message);
      else bury(id, message, { reason: 'webhook-removed', attempts: 0, lastError: undefined });
    }
  }

  const types = new Set(deps.types);
  undo.use(
    bus.subscribe((message) => {
      if (!types.has(message.type)) return;
      const taken = webhooks.filter(({ queue }) => queue.offer(message)).map(({ id }) => id);
      if (taken.length > 0) outbox.add(message, taken);
    }),
  );
  undo.defer(async () => {
    const enough = Promise.withResolvers<void>();
    using _limit = clock.timer(END_MS, enough.resolve);
    await Promise.race([Promise.all(webhooks.map(({ queue }) => queue.flushed())), enough.promise]);
  });
  const everything = undo.move();
  return { recorded: () => outbox.flushed(), [Symbol.asyncDispose]: () => everything.disposeAsync() };
}
