import { describe, expect, test } from 'vitest';
import { CREATE_BASE, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

/** On disk and nowhere else. */
function expectPaused(harness: LifecycleHarness, count: number): void {
  expect(harness.stored().map(({ state }) => state)).toEqual(Array.from({ length: count }, () => 'paused'));
  expect(harness.disk.captures.size).toBe(count);
  expect(harness.world.machines.size).toBe(0);
  expect(harness.admission.status().sandboxes).toBe(0);
}

describe('shutdown', () => {
  test('pauses every sandbox and refuses new operations, however often it is asked; the next start goes on with them', async () => {
    const harness = await startLifecycle();
    const { orchestrator } = harness;
    const records = await Promise.all(Array.from({ length: 12 }, () => orchestrator.create(CREATE_BASE)));
    const first = orchestrator[Symbol.asyncDispose]();
    const id = records[0]?.id ?? '';
    for (const operation of [
      orchestrator.create(CREATE_BASE),
      orchestrator.connect(id, 10),
      orchestrator.setTimeout(id, 10),
      orchestrator.refresh(id, 10),
    ]) {
      await expect(operation).rejects.toMatchObject({ code: 'unavailable', message: 'the server is shutting down' });
    }
    expect(orchestrator[Symbol.asyncDispose]()).toBe(first);
    await first;
    expectPaused(harness, 12);
    expect(harness.envdEnds).toHaveLength(12);
    await orchestrator[Symbol.asyncDispose]();
    await harness.registry[Symbol.asyncDispose]();
    expect(await harness.timersLeft()).toBe(0);

    const next = await startLifecycle({ world: harness.world, disk: harness.disk, seed: 2 });
    for (const record of records) expect((await next.orchestrator.connect(record.id, 10)).resumed).toBe(true);
    expect(next.world.machines.size).toBe(12);
  });

  test('tries a pause that fails three times, and ends what still cannot be paused', async () => {
    const harness = await startLifecycle();
    const twice = await harness.orchestrator.create(CREATE_BASE);
    for (let attempt = 0; attempt < 2; attempt++) harness.world.faults.next('capture', { kind: 'fail' });
    await harness.orchestrator[Symbol.asyncDispose]();
    expectPaused(harness, 1);

    const next = await startLifecycle({ world: harness.world, disk: harness.disk, seed: 2 });
    await next.orchestrator.connect(twice.id, 10);
    for (let attempt = 0; attempt < 3; attempt++) next.world.faults.next('capture', { kind: 'fail' });
    await next.orchestrator[Symbol.asyncDispose]();
    expect(next.leftovers()).toEqual({});
    expect(next.counted.filter((call) => call === 'ended:shutdown')).toHaveLength(1);
    expect(next.log.find('error', 'could not be paused')).toHaveLength(3);
  });

  test.each(['start', 'activate'] as const)('cuts off a launch that is at %s and undoes it', async (point) => {
    const harness = await startLifecycle();
    const fault = harness.world.faults.next(point, { kind: 'hang' });
    const creating = harness.orchestrator.create(CREATE_BASE).catch((error: unknown) => error);
    await fault.hit;
    await harness.orchestrator[Symbol.asyncDispose]();
    expect(await creating).toMatchObject({ code: 'unavailable' });
    expect(harness.leftovers()).toEqual({});
    expect(harness.orchestrator.status().createFails).toBe(0);
  });

  test('refuses a create that was still looking for its place', async () => {
    const gate = Promise.withResolvers<void>();
    const harness = await startLifecycle({
      hostCapacity: async () => {
        await gate.promise;
        return { totalMemoryMB: 24_000, availableMemoryMB: 22_000, freeDiskMB: 200_000 };
      },
    });
    const creating = harness.orchestrator.create(CREATE_BASE).catch((error: unknown) => error);
    await harness.clock.advance(0);
    await harness.orchestrator[Symbol.asyncDispose]();
    gate.resolve();
    expect(await creating).toMatchObject({ code: 'unavailable' });
    expect(harness.leftovers()).toEqual({});
  });

  test('does not wait for ever for an engine that does not stop, and names the sandbox', async () => {
    const harness = await startLifecycle();
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    await harness.orchestrator.create(CREATE_BASE);
    harness.world.faults.next('stop', { kind: 'hang' });
    const ending = harness.orchestrator[Symbol.asyncDispose]();
    await harness.clock.advance(30_000);
    await ending;
    expect(harness.world.machines.size).toBe(1);
    expect(harness.log.find('error', 'could not be paused')).toMatchObject([{ fields: { sandboxIds: [id] } }]);
    expect(harness.stored().map(({ state }) => state)).toEqual(['paused', 'paused']);
    await harness.registry[Symbol.asyncDispose]();
    expect(await harness.timersLeft()).toBe(0);
  });

  test('pauses at most as many at a time as configured', async () => {
    const harness = await startLifecycle({ config: { shutdownConcurrency: 3 } });
    await Promise.all(Array.from({ length: 9 }, () => harness.orchestrator.create(CREATE_BASE)));
    const captures = Array.from({ length: 9 }, () => harness.world.faults.next('capture', { kind: 'hang' }));
    const ending = harness.orchestrator[Symbol.asyncDispose]();
    for (let released = 0; released < 9; released++) {
      await harness.clock.advance(0);
      expect(harness.orchestrator.status().sandboxes.pausing).toBe(Math.min(3, 9 - released));
      captures[released]?.release();
    }
    await ending;
    expectPaused(harness, 9);
  });
});
