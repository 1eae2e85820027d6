import { createFakeClock, createRecordingLog, createSeededRandom } from '@agentenv/core/testing';
import { describe, expect, it } from 'vitest';
import type { EventMessage } from './event-bus.ts';
import {
  type AttemptOutcome,
  createWebhookQueue,
  DEFAULT_WEBHOOK_QUEUE_LIMITS,
  type WebhookQueueLimits,
} from './webhook-queue.ts';

const ACCEPTED: AttemptOutcome = { kind: 'accepted' };
const REFUSED: AttemptOutcome = { kind: 'refused', error: 'it answered 500' };

function message(id: string, sandboxId = 'one', text = ''): EventMessage {
  return { id, sandboxId, type: 'sandbox.lifecycle.created', at: 0, json: JSON.stringify({ id, text }) };
}

/** A receiver that answers at once as `answer` says, or hangs until it is told. */
function start(options: {
  readonly answer?: (message: EventMessage, attempt: number) => AttemptOutcome | 'hang';
  readonly limits?: Partial<WebhookQueueLimits>;
}) {
  const clock = createFakeClock();
  const log = createRecordingLog();
  const sent: { readonly id: string; readonly at: number }[] = [];
  const accepted: string[] = [];
  const dead: { readonly id: string; readonly reason: string; readonly attempts: number }[] = [];
  const counted: string[] = [];
  const hanging = new Map<string, (outcome: AttemptOutcome) => void>();
  let most = 0;
  const tries = new Map<string, number>();
  const queue = createWebhookQueue({
    ...{ id: 'wh', clock, log, rng: createSeededRandom(1) },
    limits: { ...DEFAULT_WEBHOOK_QUEUE_LIMITS, attempts: 4, ...options.limits },
    async send(event, signal) {
      const attempt = (tries.get(event.id) ?? 0) + 1;
      tries.set(event.id, attempt);
      sent.push({ id: event.id, at: clock.monotonic() });
      const outcome = options.answer?.(event, attempt) ?? ACCEPTED;
      if (outcome !== 'hang') return outcome;
      const { promise, resolve, reject } = Promise.withResolvers<AttemptOutcome>();
      hanging.set(event.id, resolve);
      most = Math.max(most, hanging.size);
      signal.addEventListener('abort', () => reject(signal.reason), { once: true });
      return await promise.finally(() => hanging.delete(event.id));
    },
    onAttempt: (kind) => counted.push(kind),
    onAccepted: ({ id }) => accepted.push(id),
    onDead: ({ id }, { reason, attempts }) => dead.push({ id, reason, attempts }),
  });
  const release = async (id: string, outcome = ACCEPTED): Promise<void> => {
    hanging.get(id)?.(outcome);
    await clock.advance(0);
  };
  return { queue, clock, log, sent, accepted, dead, counted, hanging, release, most: () => most };
}

describe('the events of one sandbox', () => {
  it('are sent in order, one after another', async () => {
    const { queue, clock, sent, accepted, release } = start({ answer: () => 'hang' });
    for (const id of ['a', 'b', 'c']) expect(queue.offer(message(id))).toBe(true);
    await clock.advance(0);
    expect(sent.map(({ id }) => id)).toEqual(['a']);
    await release('a');
    expect(sent.map(({ id }) => id)).toEqual(['a', 'b']);
    await release('b');
    await release('c');
    expect(accepted).toEqual(['a', 'b', 'c']);
    expect(queue.pending).toBe(0);
    expect(clock.pendingTimers).toBe(0);
  });

  it('wait while the first of them is tried again, and go on when it is given up', async () => {
    const { queue, clock, accepted, dead, sent, log } = start({
      answer: ({ id }) => (id === 'a' ? REFUSED : ACCEPTED),
    });
    queue.offer(message('a'));
    queue.offer(message('b'));
    await clock.advance(2_000);
    expect(accepted).toEqual([]);
    expect(queue.pending).toBe(2);
    await clock.advance(60_000);
    expect(dead).toEqual([{ id: 'a', reason: 'attempts-exhausted', attempts: 4 }]);
    expect(accepted).toEqual(['b']);
    expect(sent.filter(({ id }) => id === 'a')).toHaveLength(4);
    expect(log.find('error')).toMatchObject([
      { fields: { webhook: 'wh', eventId: 'a', reason: 'attempts-exhausted', lastError: 'it answered 500' } },
    ]);
    expect(clock.pendingTimers).toBe(0);
  });

  it('do not wait for those of others', async () => {
    const { queue, clock, accepted } = start({ answer: ({ sandboxId }) => (sandboxId === 'one' ? 'hang' : ACCEPTED) });
    queue.offer(message('a', 'one'));
    queue.offer(message('b', 'two'));
    queue.offer(message('c', 'three'));
    await clock.advance(0);
    expect(accepted).toEqual(['b', 'c']);
  });
});

describe('retries', () => {
  it('come after waits that double up to a limit, each at least half of it and never the same', async () => {
    const limits = { attempts: 12, firstRetryMs: 1_000, longestRetryMs: 60_000 };
    const { queue, clock, sent } = start({ answer: () => REFUSED, limits });
    queue.offer(message('a'));
    await clock.advance(3_600_000);
    const waits = sent.slice(1).map(({ at }, index) => at - (sent[index]?.at ?? 0));
    expect(waits).toHaveLength(11);
    for (const [index, wait] of waits.entries()) {
      const full = Math.min(60_000, 1_000 * 2 ** index);
      expect(wait).toBeGreaterThanOrEqual(full / 2);
      expect(wait).toBeLessThanOrEqual(full);
    }
    expect(new Set(waits.slice(-5)).size).toBe(5);
  });

  it('end with the first that is accepted', async () => {
    const { queue, clock, accepted, dead, counted } = start({
      answer: (_message, attempt) => (attempt < 3 ? { kind: 'failed', error: 'no answer' } : ACCEPTED),
    });
    queue.offer(message('a'));
    await clock.advance(60_000);
    expect([accepted, dead]).toEqual([['a'], []]);
    expect(counted).toEqual(['failed', 'failed', 'accepted']);
  });

  it('of a receiver that is away are one line of the log a minute', async () => {
    const { queue, clock, log } = start({ answer: () => REFUSED, limits: { attempts: 100 } });
    for (let index = 0; index < 50; index++) queue.offer(message(`m${index}`, `s${index}`));
    await clock.advance(30_000);
    expect(log.find('warn')).toHaveLength(1);
    await clock.advance(60_000);
    expect(log.find('warn')).toHaveLength(2);
  });
});

describe('limits', () => {
  it('bound what is on its way at once', async () => {
    const { queue, clock, hanging, most, release } = start({ answer: () => 'hang', limits: { concurrency: 3 } });
    for (let index = 0; index < 10; index++) queue.offer(message(`m${index}`, `s${index}`));
    for (let index = 0; index < 10; index++) {
      await clock.advance(0);
      await release([...hanging.keys()][0] ?? '');
    }
    expect(most()).toBe(3);
    expect(queue.pending).toBe(0);
  });

  it.each([
    ['events', { events: 2 }],
    ['bytes', { bytes: 2 * message('a', 'one', 'x'.repeat(100)).json.length }],
  ])('of %s make the newest a dead letter, at once', async (_what, limits) => {
    const { queue, clock, dead, accepted, release } = start({ answer: () => 'hang', limits });
    const text = 'x'.repeat(100);
    expect(['a', 'b', 'c'].map((id) => queue.offer(message(id, 'one', text)))).toEqual([true, true, false]);
    expect(dead).toEqual([{ id: 'c', reason: 'queue-full', attempts: 0 }]);
    await clock.advance(0);
    await release('a');
    expect(queue.offer(message('d', 'one', text))).toBe(true);
    await release('b');
    await release('d');
    expect(accepted).toEqual(['a', 'b', 'd']);
  });
});

describe('the end', () => {
  it('waits for what can be sent at once and not for retries', async () => {
    const { queue, clock, release, accepted } = start({ answer: ({ id }) => (id === 'bad' ? REFUSED : 'hang') });
    queue.offer(message('bad', 'two'));
    queue.offer(message('a'));
    queue.offer(message('b'));
    let flushed = false;
    const flushing = queue.flushed().then(() => {
      flushed = true;
    });
    await clock.advance(0);
    await release('a');
    expect(flushed).toBe(false);
    await release('b');
    await flushing;
    expect(accepted).toEqual(['a', 'b']);
    expect(queue.pending).toBe(1);
    await queue.flushed();
    queue[Symbol.dispose]();
    expect(clock.pendingTimers).toBe(0);
  });

  it('breaks off what is on its way, without giving it up', async () => {
    const { queue, clock, dead, accepted, counted } = start({ answer: () => 'hang' });
    queue.offer(message('a'));
    await clock.advance(0);
    queue[Symbol.dispose]();
    await clock.advance(0);
    expect([dead, accepted, counted]).toEqual([[], [], []]);
    expect(queue.offer(message('b'))).toBe(false);
    expect(clock.pendingTimers).toBe(0);
  });
});
