import { PlatformError } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { createFakeWorld } from '@agentenv/runtime';
import { createMemoryDisk } from '@agentenv/storage/testing';
import { describe, expect, test } from 'vitest';
import type { ExtensionClient } from '../hooks/extension-client.ts';
import { CREATE_BASE, LIST_ALL, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

const hang = () => new Promise<never>(() => {});

const killed = ({ events }: LifecycleHarness) => events.filter(({ type }) => type === 'sandbox.lifecycle.killed');

function abandon(request: Promise<unknown>): void {
  request.catch(() => undefined);
}

function createHost() {
  return { world: createFakeWorld({ clock: createFakeClock() }), disk: createMemoryDisk() };
}

/** Notes the instances whose stop it is told of. */
function recordingExtension() {
  const stopped: string[] = [];
  const client: ExtensionClient = {
    startFresh: async () => undefined,
    async startResume() {},
    patchParams: async () => ({}),
    async stop({ sandboxInstanceId }) {
      stopped.push(sandboxInstanceId);
    },
  };
  return { stopped, client };
}

describe('a kill', () => {
  test('of a running sandbox that was told is not undone by a crash before its engine stops', async () => {
    const { world, disk } = createHost();
    const former = await startLifecycle({ world, disk });
    const { id, instanceId } = await former.orchestrator.create(CREATE_BASE);
    const stop = world.faults.next('stop', { kind: 'hang' });
    abandon(former.orchestrator.kill(id, 'test'));
    await stop.hit;
    expect(killed(former)).toHaveLength(1);

    const extension = recordingExtension();
    const next = await startLifecycle({ world, disk, seed: 2, extension: extension.client });
    expect(next.orchestrator.list(LIST_ALL).sandboxes).toEqual([]);
    expect(next.leftovers()).toEqual({});
    expect(world.slots.inUse).toBe(0);
    expect(extension.stopped).toEqual([instanceId]);
  });

  test.each(['pausing', 'resuming', 'snapshotting'] as const)(
    'of a sandbox that is %s, and was told, is not undone either',
    async (state) => {
      const { world, disk } = createHost();
      const former = await startLifecycle({ world, disk });
      const { id } = await former.orchestrator.create(CREATE_BASE);
      if (state === 'resuming') await former.orchestrator.pause(id);
      const step = world.faults.next(state === 'resuming' ? 'start' : 'capture', { kind: 'hang' });
      if (state === 'pausing') abandon(former.orchestrator.pause(id));
      if (state === 'resuming') abandon(former.orchestrator.resume(id, 60));
      if (state === 'snapshotting') abandon(former.orchestrator.snapshot(id, 'data'));
      await step.hit;
      abandon(former.orchestrator.kill(id, 'test'));
      await former.until(() => killed(former).length === 1);

      const next = await startLifecycle({ world, disk, seed: 2 });
      expect(next.orchestrator.list(LIST_ALL).sandboxes).toEqual([]);
      expect(next.leftovers()).toEqual({});
    },
  );

  test('of a paused sandbox that was told is not undone by a crash before its record is removed', async () => {
    const { world, disk } = createHost();
    const extension = recordingExtension();
    const former = await startLifecycle({
      ...{ world, disk, extension: extension.client },
      intercept: ({ kind }, apply) => (kind === 'delete' ? hang() : apply()),
    });
    const { id, instanceId } = await former.orchestrator.create(CREATE_BASE);
    await former.orchestrator.pause(id);
    abandon(former.orchestrator.kill(id, 'test'));
    await former.until(() => killed(former).length === 1);

    const next = await startLifecycle({ world, disk, seed: 2, extension: extension.client });
    expect(next.orchestrator.list(LIST_ALL).sandboxes).toEqual([]);
    expect(next.leftovers()).toEqual({});
    // Its stop was told of when it was paused.
    expect(extension.stopped).toEqual([instanceId]);
  });

  test('is told only when the ledger knows of it, and again by the start after a crash in between', async () => {
    const { world, disk } = createHost();
    const noted = Promise.withResolvers<void>();
    const former = await startLifecycle({
      ...{ world, disk },
      async intercept({ record }, apply) {
        await apply();
        if (record?.state !== 'killing') return;
        noted.resolve();
        await hang();
      },
    });
    const { id } = await former.orchestrator.create(CREATE_BASE);
    abandon(former.orchestrator.kill(id, 'test'));
    await noted.promise;
    await former.clock.advance(0);
    expect(killed(former)).toEqual([]);
    const next = await startLifecycle({ world, disk, seed: 2 });
    expect(killed(next)).toMatchObject([{ reason: 'server-restarted', sandbox: { id } }]);
    expect(next.leftovers()).toEqual({});
  });

  test.each([
    ['refuses', () => Promise.reject(new PlatformError('no_space', 'disk full'))],
    ['does not answer', hang],
  ] as const)('goes on when the ledger %s, and is told when nothing is left to come back', async (_how, answer) => {
    const { world, disk } = createHost();
    const harness = await startLifecycle({
      ...{ world, disk },
      intercept: ({ record }, apply) => (record?.state === 'killing' ? answer() : apply()),
    });
    const { id } = await harness.orchestrator.create(CREATE_BASE);
    const stop = world.faults.next('stop', { kind: 'hang' });
    const killing = harness.orchestrator.kill(id, 'test');
    await harness.clock.advance(2_000);
    await stop.hit;
    expect(killed(harness)).toEqual([]);
    stop.release();
    await killing;
    expect(killed(harness)).toMatchObject([{ reason: 'deleted' }]);
    expect(harness.leftovers()).toEqual({});
    expect(await harness.timersLeft()).toBe(0);
  });
});
