import { describe, expect, test } from 'vitest';
import { CREATE_BASE, startLifecycle } from '../testing/lifecycle-harness.ts';

describe('shutdown', () => {
  test('ends every sandbox, refuses new operations and leaves nothing, however often it is asked', async () => {
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
    expect(harness.leftovers()).toEqual({});
    expect(harness.counted.filter((call) => call === 'ended:shutdown')).toHaveLength(12);
    expect(harness.envdEnds).toHaveLength(12);
    await orchestrator[Symbol.asyncDispose]();
    await harness.registry[Symbol.asyncDispose]();
    expect(await harness.timersLeft()).toBe(0);
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
    expect(harness.log.find('error', 'could not be ended')).toMatchObject([{ fields: { sandboxIds: [id] } }]);
    expect(harness.stored().map((record) => record.id)).toEqual([id]);
    await harness.registry[Symbol.asyncDispose]();
    expect(await harness.timersLeft()).toBe(0);
  });

  test('ends at most as many at a time as configured', async () => {
    const harness = await startLifecycle({ config: { shutdownConcurrency: 3 } });
    await Promise.all(Array.from({ length: 9 }, () => harness.orchestrator.create(CREATE_BASE)));
    const stops = Array.from({ length: 9 }, () => harness.world.faults.next('stop', { kind: 'hang' }));
    const ending = harness.orchestrator[Symbol.asyncDispose]();
    for (let released = 0; released < 9; released++) {
      await harness.clock.advance(0);
      expect(harness.orchestrator.status().sandboxes.killing).toBe(Math.min(3, 9 - released));
      stops[released]?.release();
    }
    await ending;
    expect(harness.leftovers()).toEqual({});
  });
});
