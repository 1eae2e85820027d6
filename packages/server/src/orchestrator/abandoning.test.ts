import { createFakeClock } from '@agentenv/core/testing';
import { createFakeWorld } from '@agentenv/runtime';
import { createMemoryDisk } from '@agentenv/storage/testing';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, startLifecycle } from '../testing/lifecycle-harness.ts';

function createHost() {
  return { world: createFakeWorld({ clock: createFakeClock() }), disk: createMemoryDisk() };
}

describe('a server that adopted sandboxes and cannot start', () => {
  test('leaves them running for the next one, and refuses everything from then on', async () => {
    const host = createHost();
    const former = await startLifecycle(host);
    const { id } = await former.orchestrator.create(CREATE_BASE);
    const failing = await startLifecycle({ ...host, seed: 2 });
    const { engine } = host.world.machineOf(id);
    await failing.orchestrator.abandon();
    await failing.orchestrator[Symbol.asyncDispose]();
    await expect(failing.orchestrator.create(CREATE_BASE)).rejects.toMatchObject({ code: 'unavailable' });
    await expect(failing.orchestrator.pause(id)).rejects.toMatchObject({ code: 'unavailable' });
    expect(failing.events).toEqual([]);
    expect(await failing.timersLeft()).toBe(0);

    const next = await startLifecycle({ ...host, seed: 3 });
    expect(next.orchestrator.get(id).state).toBe('running');
    expect(host.world.machineOf(id).engine).toBe(engine);
  });

  test('waits for what is under way, so that nothing of it is undone half-way', async () => {
    const host = createHost();
    const failing = await startLifecycle(host);
    const { id } = await failing.orchestrator.create(CREATE_BASE);
    const killed = await failing.orchestrator.create(CREATE_BASE);
    const capture = host.world.faults.next('capture', { kind: 'hang' });
    const stop = host.world.faults.next('stop', { kind: 'hang' });
    const killing = failing.orchestrator.kill(killed.id, 'test');
    await stop.hit;
    const pausing = failing.orchestrator.pause(id);
    await capture.hit;
    let abandoned = false;
    const abandoning = failing.orchestrator.abandon().then(() => {
      abandoned = true;
    });
    await failing.clock.advance(1_000);
    expect(abandoned).toBe(false);
    stop.release();
    capture.release();
    await Promise.all([pausing, killing, abandoning]);
    expect(failing.stored()).toMatchObject([{ id, state: 'paused' }]);
  });

  test('obeys no timeout any more', async () => {
    const host = createHost();
    const failing = await startLifecycle(host);
    const { id } = await failing.orchestrator.create({ ...CREATE_BASE, timeoutSeconds: 10 });
    await failing.orchestrator.abandon();
    await failing.clock.advance(60_000);
    expect(host.world.machineOf(id).sandboxId).toBe(id);
  });

  test('does not wait for ever', async () => {
    const host = createHost();
    const failing = await startLifecycle({ ...host, config: { shutdownTimeoutMs: 5_000 } });
    const { id } = await failing.orchestrator.create(CREATE_BASE);
    const capture = host.world.faults.next('capture', { kind: 'hang' });
    failing.orchestrator.pause(id).catch(() => undefined);
    await capture.hit;
    const abandoning = failing.orchestrator.abandon();
    await failing.clock.advance(5_000);
    await abandoning;
    expect(failing.log.find('error', 'not everything came to its end')).toHaveLength(1);
  });
});
