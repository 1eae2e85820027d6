import { createFakeClock } from '@agentenv/core/testing';
import { createFakeWorld } from '@agentenv/runtime';
import { createMemoryDisk } from '@agentenv/storage/testing';
import { describe, expect, test } from 'vitest';
import type { ExtensionClient } from '../hooks/extension-client.ts';
import { CREATE_BASE, LIST_ALL, startLifecycle } from '../testing/lifecycle-harness.ts';

/** Notes what it is told; `stop` does as the test says. */
function recording(stop: () => Promise<void> = async () => undefined) {
  const calls: string[] = [];
  const client: ExtensionClient = {
    startFresh: async () => undefined,
    async startResume({ sandboxInstanceId, customExtensionParams }) {
      calls.push(`start ${sandboxInstanceId} ${JSON.stringify(customExtensionParams)}`);
    },
    patchParams: async () => ({ plan: 'patched' }),
    async stop({ sandboxInstanceId }) {
      calls.push(`stop ${sandboxInstanceId}`);
      await stop();
    },
  };
  return { calls, client };
}

const host = () => ({ world: createFakeWorld({ clock: createFakeClock() }), disk: createMemoryDisk() });

describe('the custom extension after a crash of the server', () => {
  test('hears nothing of what runs on, which keeps its instance and its parameters', async () => {
    const { world, disk } = host();
    const former = recording();
    const dying = await startLifecycle({ world, disk, extension: former.client });
    const { id, instanceId } = await dying.orchestrator.create(CREATE_BASE);
    await dying.orchestrator.patchParams(id, {});

    const ext = recording();
    const next = await startLifecycle({ world, disk, seed: 2, extension: ext.client });
    expect(next.orchestrator.get(id)).toMatchObject({ instanceId, customExtensionParams: { plan: 'patched' } });
    expect(ext.calls).toEqual([]);
    const [child] = await next.orchestrator.fork(id, { count: 1, timeoutSeconds: 60 });
    if (child?.kind !== 'started') throw new Error('no child');
    expect(ext.calls).toEqual([`start ${child.record.instanceId} {"plan":"patched"}`]);
    await next.orchestrator.kill(id, 'test');
    expect(ext.calls.slice(1)).toEqual([`stop ${instanceId}`]);
    expect(former.calls).toEqual([`start ${instanceId} {}`]);
  });

  test('is told once of every instance that ended with it, and of none that had ended before', async () => {
    const { world, disk } = host();
    const dying = await startLifecycle({ world, disk, extension: recording().client });
    const [first, second, third] = await Promise.all([1, 2, 3].map(() => dying.orchestrator.create(CREATE_BASE)));
    if (first === undefined || second === undefined || third === undefined) throw new Error('unreachable');
    await dying.orchestrator.pause(third.id);
    for (const lost of [first, second]) {
      const { runtime: _runtime, ...record } = JSON.parse(disk.sandboxes.get(lost.id) ?? '');
      disk.sandboxes.set(lost.id, JSON.stringify(record));
    }
    const ext = recording();
    const next = await startLifecycle({ world, disk, seed: 2, extension: ext.client });
    expect(ext.calls.toSorted()).toEqual([`stop ${first.instanceId}`, `stop ${second.instanceId}`].toSorted());
    expect(next.orchestrator.list(LIST_ALL).sandboxes.map(({ id }) => id)).toEqual([third.id]);
    await startLifecycle({ world, disk, seed: 3, extension: ext.client });
    expect(ext.calls).toHaveLength(2);
  });

  test('is not waited for by the start, but by the orderly end', async () => {
    const { world, disk } = host();
    const dying = await startLifecycle({ world, disk, extension: recording().client });
    const { id } = await dying.orchestrator.create(CREATE_BASE);
    const { runtime: _runtime, ...record } = JSON.parse(disk.sandboxes.get(id) ?? '');
    disk.sandboxes.set(id, JSON.stringify(record));
    const answer = Promise.withResolvers<void>();
    const ext = recording(() => answer.promise);
    const next = await startLifecycle({ world, disk, seed: 2, extension: ext.client });
    expect(ext.calls).toHaveLength(1);
    let ended = false;
    const ending = (async () => {
      await next.orchestrator[Symbol.asyncDispose]();
      ended = true;
    })();
    await next.clock.advance(0);
    expect(ended).toBe(false);
    answer.resolve();
    await ending;
  });
});
