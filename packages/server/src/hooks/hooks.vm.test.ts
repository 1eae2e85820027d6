import { createQemuWorld } from '@agentenv/runtime/testing';
import { expect, test } from 'vitest';
import { describeHookCaptures } from '../testing/hook-captures-suite.ts';
import { describeHookOperations } from '../testing/hook-operations-suite.ts';
import type { HookHost } from '../testing/hook-world.ts';
import { startHookServer } from '../testing/hook-world.ts';
import { describeHooks } from '../testing/hooks-suite.ts';
import { startRecordingExtension } from '../testing/recording-extension.ts';

async function openHost(pool = { low: 0, high: 0 }): Promise<HookHost> {
  const world = await createQemuWorld();
  return {
    open: () => world.open({ pool }),
    rootfs: world.artifacts.rootfs.base,
    resources: { vcpus: 2, memoryMB: 512, diskSizeMB: 4_096 },
    slotsInUse: () => world.slots.status().inUse,
    [Symbol.asyncDispose]: () => world[Symbol.asyncDispose](),
  };
}

describeHooks('qemu', () => openHost(), [describeHookOperations, describeHookCaptures]);

test('qemu hooks/68 machines in the pool are nobody’s; one that is taken sends its start before it goes on', async () => {
  await using ext = await startRecordingExtension();
  await using host = await openHost({ low: 1, high: 1 });
  await using server = await startHookServer({ host, extensionUrl: ext.url, timeoutMs: 5_000 });
  const create = () => server.api('POST', '/sandboxes', { templateID: 'base' });
  const ready = () => expect.poll(() => server.backend.status().pool.ready, { timeout: 60_000, interval: 100 }).toBe(1);
  await ready();
  expect(ext.calls).toEqual([]);
  expect((await create()).status).toBe(201);
  expect(server.backend.status().pool).toMatchObject({ hits: 1 });
  expect(ext.calls.map(({ hook }) => hook)).toEqual(['start-resume']);
  await ready();
  ext.answer('start-resume', { status: 422, body: 'no' });
  expect((await create()).status).toBe(400);
  expect(server.backend.status().pool).toMatchObject({ hits: 2 });
  expect(ext.calls.map(({ hook }) => hook)).toEqual(['start-resume', 'start-resume', 'stop']);
  expect(ext.of('stop')[0]?.body.sandboxInstanceId).toBe(ext.of('start-resume')[1]?.body.sandboxInstanceId);
});
