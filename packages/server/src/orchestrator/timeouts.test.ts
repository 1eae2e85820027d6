import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

const hang = () => new Promise<never>(() => {});

async function sandbox(harness: LifecycleHarness, timeoutSeconds: number) {
  const { id } = await harness.orchestrator.create({ ...CREATE_BASE, timeoutSeconds });
  return id;
}

function remaining(harness: LifecycleHarness, id: string): number {
  return ((harness.orchestrator.get(id).deadline ?? Number.NaN) - harness.clock.now()) / 1000;
}

const exists = (harness: LifecycleHarness, id: string): boolean => harness.orchestrator.target(id).kind === 'ready';

describe('timeouts', { timeout: 30_000 }, () => {
  test('a sandbox is ended when its time has passed, within a second', async () => {
    const harness = await startLifecycle();
    const id = await sandbox(harness, 3);
    await harness.clock.advance(2_999);
    expect(exists(harness, id)).toBe(true);
    await harness.clock.advance(1_001);
    expect(harness.leftovers()).toEqual({});
    expect(harness.counted).toContain('ended:expired');
    expect(await harness.timersLeft()).toBe(0);
  });

  test('setTimeout shortens and extends', async () => {
    const harness = await startLifecycle();
    const id = await sandbox(harness, 300);
    await harness.orchestrator.setTimeout(id, 5);
    expect(remaining(harness, id)).toBe(5);
    await harness.clock.advance(4_000);
    await harness.orchestrator.setTimeout(id, 100);
    expect(remaining(harness, id)).toBe(100);
    expect(harness.orchestrator.get(id).timeoutSeconds).toBe(100);
    await harness.clock.advance(99_000);
    expect(exists(harness, id)).toBe(true);
    await harness.clock.advance(2_000);
    expect(exists(harness, id)).toBe(false);
  });

  test('setTimeout 0 ends it now; a negative one is refused', async () => {
    const harness = await startLifecycle();
    const id = await sandbox(harness, 300);
    await expect(harness.orchestrator.setTimeout(id, -1)).rejects.toMatchObject({
      code: 'invalid_argument',
      message: 'timeout must be greater than 0',
    });
    await harness.orchestrator.setTimeout(id, 0);
    expect(harness.leftovers()).toEqual({});
    await expect(harness.orchestrator.setTimeout(id, 0)).rejects.toMatchObject({ code: 'not_found' });
  });

  test('connect on a running sandbox extends and never shortens', async () => {
    const harness = await startLifecycle();
    const id = await sandbox(harness, 100);
    expect(await harness.orchestrator.connect(id, 10)).toMatchObject({ resumed: false, record: { id } });
    expect(remaining(harness, id)).toBe(100);
    expect(harness.orchestrator.get(id).timeoutSeconds).toBe(100);
    await harness.orchestrator.connect(id, 200);
    expect(remaining(harness, id)).toBe(200);
    await expect(harness.orchestrator.connect(id, 0)).rejects.toMatchObject({ code: 'invalid_argument' });
  });

  test('refresh extends and never shortens', async () => {
    const harness = await startLifecycle();
    const id = await sandbox(harness, 100);
    await harness.orchestrator.refresh(id, 50);
    expect(remaining(harness, id)).toBe(100);
    await harness.orchestrator.refresh(id, 101);
    expect(remaining(harness, id)).toBe(101);
  });

  test('a new deadline is on disk before it counts', async () => {
    const harness = await startLifecycle();
    const id = await sandbox(harness, 100);
    await harness.orchestrator.setTimeout(id, 500);
    expect(harness.stored()[0]?.deadline).toBe(harness.orchestrator.get(id).deadline);
  });

  test('a deadline that cannot be written stays as it was', async () => {
    const harness = await startLifecycle({
      intercept: async ({ record }, apply) => {
        if (record?.timeoutSeconds === 500) throw new Error('disk on fire');
        await apply();
      },
    });
    const id = await sandbox(harness, 100);
    await expect(harness.orchestrator.setTimeout(id, 500)).rejects.toThrow('disk on fire');
    expect(remaining(harness, id)).toBe(100);
    await harness.clock.advance(101_000);
    expect(exists(harness, id)).toBe(false);
  });

  test('an extension on its way to disk when the time passes saves the sandbox', async () => {
    const gate = Promise.withResolvers<void>();
    const harness = await startLifecycle({
      intercept: async ({ record }, apply) => {
        if (record?.timeoutSeconds === 60) await gate.promise;
        await apply();
      },
    });
    const id = await sandbox(harness, 10);
    await harness.clock.advance(9_900);
    const extending = harness.orchestrator.setTimeout(id, 60);
    await harness.clock.advance(300);
    expect(exists(harness, id)).toBe(true);
    gate.resolve();
    await extending;
    await harness.clock.advance(2_000);
    expect(exists(harness, id)).toBe(true);
    await harness.clock.advance(60_000);
    expect(exists(harness, id)).toBe(false);
  });

  test('an extension the ledger never answers fails at its deadline and the sandbox expires', async () => {
    const harness = await startLifecycle({
      intercept: ({ record }, apply) => (record?.timeoutSeconds === 60 ? hang() : apply()),
    });
    const id = await sandbox(harness, 10);
    const outcome = harness.orchestrator.setTimeout(id, 60).catch((error: unknown) => error);
    await harness.clock.advance(10_000);
    expect(await outcome).toMatchObject({
      code: 'deadline_exceeded',
      message: 'the ledger did not answer within 10 s',
    });
    await harness.clock.advance(1_000);
    expect(harness.leftovers()).toEqual({});
  });

  test('a wall clock that is stepped forwards expires within a second', async () => {
    const harness = await startLifecycle();
    const id = await sandbox(harness, 3_600);
    harness.clock.stepWall(3_600_000);
    await harness.clock.advance(1_000);
    expect(exists(harness, id)).toBe(false);
  });

  test('whatever the order of set, connect and refresh, each sandbox ends within a second of its last deadline', async () => {
    const step = fc.record({
      operation: fc.constantFrom('set' as const, 'connect' as const, 'refresh' as const),
      seconds: fc.integer({ min: 1, max: 40 }),
      wait: fc.integer({ min: 0, max: 12 }),
    });
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 40 }), fc.array(step, { maxLength: 12 }), async (first, steps) => {
        const harness = await startLifecycle();
        const id = await sandbox(harness, first);
        let deadline = harness.clock.now() + first * 1_000;
        for (const { operation, seconds, wait } of steps) {
          await harness.clock.advance(wait * 1_000);
          if (harness.clock.now() >= deadline) break;
          const asked = harness.clock.now() + seconds * 1_000;
          if (operation === 'set') {
            await harness.orchestrator.setTimeout(id, seconds);
            deadline = asked;
          } else {
            if (operation === 'connect') await harness.orchestrator.connect(id, seconds);
            else await harness.orchestrator.refresh(id, seconds);
            deadline = Math.max(deadline, asked);
          }
          expect(harness.orchestrator.get(id).deadline).toBe(deadline);
        }
        const left = deadline - harness.clock.now();
        if (left > 0) {
          await harness.clock.advance(left - 1);
          expect(exists(harness, id)).toBe(true);
        }
        await harness.clock.advance(1_000);
        expect(harness.leftovers()).toEqual({});
        expect(await harness.timersLeft()).toBe(0);
      }),
      { numRuns: 40 },
    );
  });
});

describe('a timeout that pauses', () => {
  const pausing = (harness: LifecycleHarness) =>
    harness.orchestrator.create({ ...CREATE_BASE, timeoutSeconds: 10, onTimeout: 'pause' });
  const failPauses = (harness: LifecycleHarness, count: number): void => {
    for (let attempt = 0; attempt < count; attempt++) harness.world.faults.next('capture', { kind: 'fail' });
  };
  const failures = (harness: LifecycleHarness): number =>
    harness.counted.filter((call) => call.startsWith('pauseFailed')).length;

  test('keeps the sandbox, which goes on with the same policy when it is resumed', async () => {
    const harness = await startLifecycle();
    const { id } = await pausing(harness);
    await harness.clock.advance(9_999);
    expect(harness.orchestrator.get(id).state).toBe('running');
    await harness.clock.advance(1_001);
    expect(harness.orchestrator.get(id)).toMatchObject({ state: 'paused', onTimeout: 'pause' });
    expect(harness.world.machines.size).toBe(0);
    await harness.clock.advance(3_600_000);
    await harness.orchestrator.connect(id, 5);
    await harness.clock.advance(6_000);
    expect(harness.orchestrator.get(id).state).toBe('paused');
    await harness.orchestrator.kill(id, 'test');
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });

  test('tries again three times within a minute, and the sandbox runs in between', async () => {
    const harness = await startLifecycle();
    const { id } = await pausing(harness);
    failPauses(harness, 3);
    await harness.clock.advance(11_000);
    expect(failures(harness)).toBe(1);
    expect(harness.orchestrator.target(id).kind).toBe('ready');
    await harness.clock.advance(41_000);
    expect(failures(harness)).toBe(3);
    expect(harness.orchestrator.target(id).kind).toBe('ready');
    await harness.clock.advance(20_000);
    expect(harness.orchestrator.get(id).state).toBe('paused');
    expect(harness.counted).not.toContain('autoPauseGivenUp');
  });

  test('gives up after that: the sandbox runs on until somebody sets a timeout', async () => {
    const harness = await startLifecycle();
    const { id } = await pausing(harness);
    failPauses(harness, 4);
    await harness.clock.advance(600_000);
    expect(failures(harness)).toBe(4);
    expect(harness.counted).toContain('autoPauseGivenUp');
    expect(harness.log.find('error', 'its timeout could not pause it in 4 attempts')).toHaveLength(1);
    expect(harness.orchestrator.target(id).kind).toBe('ready');
    await harness.orchestrator.setTimeout(id, 5);
    await harness.clock.advance(6_000);
    expect(harness.orchestrator.get(id).state).toBe('paused');
  });

  test('gives up after that: the sandbox ends where the configuration says so', async () => {
    const harness = await startLifecycle({ config: { pauseFailure: 'kill' } });
    await pausing(harness);
    failPauses(harness, 4);
    await harness.clock.advance(60_000);
    expect(failures(harness)).toBe(3);
    await harness.clock.advance(15_000);
    expect(harness.counted).toContain('ended:pause-failed');
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });

  test('starts counting anew when a client extended the time', async () => {
    const harness = await startLifecycle();
    const { id } = await pausing(harness);
    failPauses(harness, 4);
    await harness.clock.advance(52_000);
    expect(failures(harness)).toBe(3);
    await harness.orchestrator.setTimeout(id, 100);
    await harness.clock.advance(121_000);
    expect(failures(harness)).toBe(4);
    expect(harness.counted).not.toContain('autoPauseGivenUp');
    expect(harness.orchestrator.get(id).state).toBe('paused');
  });
});
