import type { Clock, Log, Rng } from '@agentenv/core';
import type { EventMessage } from './event-bus.ts';

/** What became of one attempt. */
export type AttemptOutcome =
  | { readonly kind: 'accepted' }
  /** The receiver answered, but not 2xx. */
  | { readonly kind: 'refused'; readonly error: string }
  /** No answer, or none in time. */
  | { readonly kind: 'failed'; readonly error: string };

/** Why an event is not sent any more. */
export type DeadLetterReason = 'attempts-exhausted' | 'queue-full' | 'webhook-removed';

export interface WebhookQueueLimits {
  /** Events on their way at once. */
  readonly concurrency: number;
  /** Events that may wait … */
  readonly events: number;
  /** … and their bytes together. */
  readonly bytes: number;
  /** Attempts per event. */
  readonly attempts: number;
  /** The wait after the first attempt that failed; it doubles with each, milliseconds. */
  readonly firstRetryMs: number;
  readonly longestRetryMs: number;
}

export const DEFAULT_WEBHOOK_QUEUE_LIMITS: Omit<WebhookQueueLimits, 'attempts'> = {
  concurrency: 8,
  events: 10_000,
  bytes: 32 * 1024 * 1024,
  firstRetryMs: 1_000,
  longestRetryMs: 300_000,
};

export interface WebhookQueueDependencies {
  /** Names the webhook in log and metrics. */
  readonly id: string;
  /** One attempt; bounded in time, never rejects but when it is aborted. */
  readonly send: (message: EventMessage, signal: AbortSignal) => Promise<AttemptOutcome>;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly log: Log;
  readonly limits: WebhookQueueLimits;
  readonly onAttempt: (kind: AttemptOutcome['kind']) => void;
  readonly onAccepted: (message: EventMessage) => void;
  readonly onDead: (message: EventMessage, dead: DeadLetter) => void;
}

export interface DeadLetter {
  readonly reason: DeadLetterReason;
  readonly attempts: number;
  readonly lastError: string | undefined;
}

/**
 * The events on their way to one receiver. Events of one sandbox are sent one after another, in order: the next only when
 * the one before was accepted or given up. Sandboxes do not wait for each other. What fails is tried again after a
 * growing wait, half of it random.
 */
export interface WebhookQueue extends Disposable {
  /** False: there is no room, and it has been given up. */
  offer(message: EventMessage): boolean;
  readonly pending: number;
  /** Resolves when nothing is being sent and nothing but retries is to be. */
  flushed(): Promise<void>;
}

interface Item {
  readonly message: EventMessage;
  readonly bytes: number;
  attempts: number;
}

/** What waits of one sandbox; the first is the one that is being sent, or sent again. */
interface Lane {
  readonly sandboxId: string;
  readonly items: Item[];
  retry: Disposable | undefined;
}

/** A receiver that is away is not a line of the log for every attempt, milliseconds. */
const QUIET_MS = 60_000;

/** Uniform in [0, 1). */
function fraction(rng: Rng): number {
  const bytes = rng.bytes(4);
  return new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0) / 2 ** 32;
}

export function createWebhookQueue(deps: WebhookQueueDependencies): WebhookQueue {
  const { clock, id, limits, log, rng } = deps;
  const lanes = new Map<string, Lane>();
  /** Lanes whose first event may be sent. */
  const ready: Lane[] = [];
  const stopping = new AbortController();
  let active = 0;
  let pending = 0;
  let bytes = 0;
  let idle: PromiseWithResolvers<void> | undefined;
  /** Until then failures are no lines of the log, monotonic milliseconds. */
  let quietUntil = 0;

  function remove(lane: Lane): void {
    const item = lane.items.shift();
    if (item === undefined) return;
    pending--;
    bytes -= item.bytes;
    if (lane.items.length === 0) lanes.delete(lane.sandboxId);
    else ready.push(lane);
  }

  function noteFailure(item: Item, error: string): void {
    const fields = { webhook: id, eventId: item.message.id, attempt: item.attempts, error };
    const now = clock.monotonic();
    if (now < quietUntil) {
      log.debug(fields, 'a webhook does not take an event');
      return;
    }
    quietUntil = now + QUIET_MS;
    log.warn({ ...fields, pending }, 'a webhook does not take an event; it is tried again');
  }

  function giveUp(message: EventMessage, dead: DeadLetter): void {
    const { id: eventId, type, sandboxId } = message;
    log.error({ webhook: id, eventId, event: type, sandboxId, ...dead }, 'an event is not sent to its webhook');
    deps.onDead(message, dead);
  }

  function tryAgain(lane: Lane, item: Item): void {
    const wait = Math.min(limits.longestRetryMs, limits.firstRetryMs * 2 ** (item.attempts - 1));
    lane.retry = clock.timer(wait / 2 + (wait / 2) * fraction(rng), () => {
      lane.retry = undefined;
      ready.push(lane);
      pump();
    });
  }

  function settle(lane: Lane, item: Item, outcome: AttemptOutcome): void {
    item.attempts++;
    deps.onAttempt(outcome.kind);
    if (outcome.kind === 'accepted') {
      remove(lane);
      deps.onAccepted(item.message);
      return;
    }
    if (item.attempts < limits.attempts) {
      noteFailure(item, outcome.error);
      tryAgain(lane, item);
      return;
    }
    remove(lane);
    giveUp(item.message, {
      reason: 'attempts-exhausted',
      attempts: item.attempts,
      lastError: outcome.error,
    });
  }

  async function attempt(lane: Lane, item: Item): Promise<void> {
    let outcome: AttemptOutcome;
    try {
      outcome = await deps.send(item.message, stopping.signal);
    } catch (error) {
      if (stopping.signal.aborted) return;
      outcome = { kind: 'failed', error: error instanceof Error ? error.message : String(error) };
    }
    if (!stopping.signal.aborted) settle(lane, item, outcome);
  }

  function pump(): void {
    while (!stopping.signal.aborted && active < limits.concurrency) {
      const lane = ready.shift();
      const item = lane?.items[0];
      if (lane === undefined || item === undefined) break;
      active++;
      void attempt(lane, item).finally(() => {
        active--;
        pump();
      });
    }
    if (active > 0 || ready.length > 0) return;
    idle?.resolve();
    idle = undefined;
  }

  return {
    offer(message) {
      const size = Buffer.byteLength(message.json);
      if (stopping.signal.aborted) return false;
      if (pending >= limits.events || bytes + size > limits.bytes) {
        giveUp(message, { reason: 'queue-full', attempts: 0, lastError: undefined });
        return false;
      }
      const item: Item = { message, bytes: size, attempts: 0 };
      pending++;
      bytes += size;
      const lane = lanes.get(message.sandboxId);
      if (lane !== undefined) {
        lane.items.push(item);
        return true;
      }
      const made: Lane = { sandboxId: message.sandboxId, items: [item], retry: undefined };
      lanes.set(message.sandboxId, made);
      ready.push(made);
      // Whoever publishes has to be done first.
      queueMicrotask(pump);
      return true;
    },
    get pending() {
      return pending;
    },
    async flushed() {
      if (active === 0 && ready.length === 0) return;
      idle ??= Promise.withResolvers();
      await idle.promise;
    },
    [Symbol.dispose]() {
      stopping.abort();
      for (const { retry } of lanes.values()) retry?.[Symbol.dispose]();
      idle?.resolve();
    },
  };
}
