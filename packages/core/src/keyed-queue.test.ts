import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { PlatformError } from './errors.ts';
import { createKeyedQueue } from './keyed-queue.ts';
import { createFakeClock } from './testing/index.ts';

function setUp(options: { maxWaiting?: number } = {}) {
  const clock = createFakeClock();
  const queue = createKeyedQueue({ clock, waitMs: 60_000, graceMs: 2_000, maxWaiting: options.maxWaiting ?? 100 });
  return { clock, queue };
}

/** A step that ends when the test says so and obeys its signal only if told to. */
function controlledStep(obeys: 'obeys' | 'ignores') {
  const gate = Promise.withResolvers<string>();
  const started = Promise.withResolvers<void>();
  let aborted: unknown;
  return {
    gate,
    started: started.promise,
    get aborted() {
      return aborted;
    },
    work: async (signal: AbortSignal): Promise<string> => {
      started.resolve();
      signal.addEventListener('abort', () => {
        aborted = signal.reason;
        if (obeys === 'obeys') gate.reject(signal.reason);
      });
      return await gate.promise;
    },
  };
}

const killed = new PlatformError('killed', 'sandbox was killed');

describe('keyed queue', () => {
  test('steps of one key run one after the other in the order they came, keys run side by side', async () => {
    const { queue } = setUp();
    await fc.assert(
      fc.asyncProperty(fc.array(fc.constantFrom('a', 'b', 'c'), { maxLength: 30 }), async (keys) => {
        const active = new Map<string, number>();
        const order = new Map<string, number[]>();
        await Promise.all(
          keys.map((key, index) =>
            queue.run(key, 'step', async () => {
              active.set(key, (active.get(key) ?? 0) + 1);
              expect(active.get(key)).toBe(1);
              await Promise.resolve();
              await Promise.resolve();
              order.set(key, [...(order.get(key) ?? []), index]);
              active.set(key, 0);
            }),
          ),
        );
        for (const indexes of order.values()) expect(indexes).toEqual([...indexes].sort((a, b) => a - b));
        expect(queue.size).toBe(0);
      }),
    );
  });

  test('a failing step fails its caller and not the next one', async () => {
    const { queue } = setUp();
    const failing = queue.run('a', 'first', async () => {
      throw new Error('first failed');
    });
    const second = queue.run('a', 'second', async () => 'second ran');
    await expect(failing).rejects.toThrow('first failed');
    await expect(second).resolves.toBe('second ran');
  });

  test('joiners share the outcome of the running and of the waiting step', async () => {
    const { queue } = setUp();
    const running = controlledStep('obeys');
    const leader = queue.join('a', 'pause', running.work);
    const joiner = queue.join('a', 'pause', async () => 'never runs');
    const waiting = queue.join('a', 'resume', async () => 'resumed');
    const waitingJoiner = queue.join('a', 'resume', async () => 'never runs');
    running.gate.resolve('paused');
    expect(await Promise.all([leader, joiner, waiting, waitingJoiner])).toEqual([
      'paused',
      'paused',
      'resumed',
      'resumed',
    ]);
  });

  test('joiners share the leader failure with its class', async () => {
    const { queue } = setUp();
    const step = controlledStep('obeys');
    const leader = queue.join('a', 'pause', step.work);
    const joiner = queue.join('a', 'pause', async () => 'never runs');
    step.gate.reject(new PlatformError('no_space', 'disk full'));
    for (const caller of [leader, joiner]) await expect(caller).rejects.toMatchObject({ code: 'no_space' });
  });

  test('try-run runs on an idle key and is refused on a busy one', async () => {
    const { queue } = setUp();
    const step = controlledStep('obeys');
    const busy = queue.run('a', 'long', step.work);
    expect(queue.tryRun('a', 'background', async () => 'no')).toBeUndefined();
    expect(queue.current('a')?.operation).toBe('long');
    await expect(queue.tryRun('b', 'background', async () => 'yes')).resolves.toBe('yes');
    step.gate.resolve('done');
    await busy;
    await expect(queue.tryRun('a', 'background', async () => 'yes')).resolves.toBe('yes');
  });

  test('a pre-emption aborts the running step, fails it and everybody waiting at once, and runs when it has unwound', async () => {
    const { queue, clock } = setUp();
    const step = controlledStep('obeys');
    const running = queue.run('a', 'create', step.work);
    const waiting = queue.run('a', 'timeout', async () => 'never runs');
    await step.started;
    const kill = queue.preempt('a', 'kill', killed, async () => 'killed it');
    await expect(running).rejects.toBe(killed);
    await expect(waiting).rejects.toBe(killed);
    expect(step.aborted).toBe(killed);
    await expect(kill).resolves.toBe('killed it');
    expect(queue.size).toBe(0);
    expect(clock.pendingTimers).toBe(0);
  });

  test('a step that does not unwind loses its key after the grace and can disturb nobody when it ends later', async () => {
    const { queue, clock } = setUp();
    const step = controlledStep('ignores');
    const running = queue.run('a', 'create', step.work);
    await step.started;
    const seen: string[] = [];
    const kill = queue.preempt('a', 'kill', killed, async () => {
      seen.push('kill ran');
    });
    await expect(running).rejects.toBe(killed);
    await clock.advance(1_999);
    expect(seen).toEqual([]);
    await clock.advance(1);
    await kill;
    expect(seen).toEqual(['kill ran']);
    const next = controlledStep('obeys');
    const later = queue.run('a', 'later', next.work);
    step.gate.resolve('too late');
    await clock.advance(0);
    expect(queue.current('a')?.operation).toBe('later');
    next.gate.resolve('later ran');
    await expect(later).resolves.toBe('later ran');
  });

  test('concurrent pre-emptions of the same operation join, on a busy and on an idle key', async () => {
    const { queue } = setUp();
    const step = controlledStep('obeys');
    const running = queue.run('busy', 'create', step.work);
    let runs = 0;
    for (const key of ['busy', 'idle']) {
      const gate = Promise.withResolvers<void>();
      const kill = () =>
        queue.preempt(key, 'kill', killed, async () => {
          runs++;
          await gate.promise;
          return 'gone';
        });
      const kills = [kill(), kill(), kill()];
      gate.resolve();
      expect(await Promise.all(kills)).toEqual(['gone', 'gone', 'gone']);
    }
    await expect(running).rejects.toBe(killed);
    expect(runs).toBe(2);
  });

  test('a request waits no longer than its limit and is told for what', async () => {
    const { queue, clock } = setUp();
    const step = controlledStep('obeys');
    const running = queue.run('a', 'snapshot', step.work);
    const waiting = queue.run('a', 'timeout', async () => 'never runs');
    await clock.advance(60_000);
    await expect(waiting).rejects.toMatchObject({ code: 'conflict', message: "waited 60 s for 'snapshot' to finish" });
    step.gate.resolve('done');
    await expect(running).resolves.toBe('done');
    expect(clock.pendingTimers).toBe(0);
  });

  test('the queue of one key is bounded', async () => {
    const { queue } = setUp({ maxWaiting: 2 });
    const step = controlledStep('obeys');
    const all = [queue.run('a', 'long', step.work)];
    for (let index = 0; index < 2; index++) all.push(queue.run('a', 'next', async () => 'ran'));
    await expect(queue.run('a', 'next', async () => 'never')).rejects.toMatchObject({ code: 'capacity' });
    step.gate.resolve('ran');
    expect(await Promise.all(all)).toEqual(['ran', 'ran', 'ran']);
  });
});
