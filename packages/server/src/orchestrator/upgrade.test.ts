import { createFakeClock } from '@agentenv/core/testing';
import { createFakeWorld } from '@agentenv/runtime';
import { createMemoryDisk } from '@agentenv/storage/testing';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, startLifecycle } from '../testing/lifecycle-harness.ts';

/** A host that counts the captures of templates. */
function createHost() {
  const world = createFakeWorld({ clock: createFakeClock() });
  let prepared = 0;
  const faults: typeof world.faults = {
    ...world.faults,
    async pass(point, signal) {
      if (point === 'prepare') prepared++;
      await world.faults.pass(point, signal);
    },
  };
  return { host: { world: { ...world, faults }, disk: createMemoryDisk() }, prepared: () => prepared };
}

const UPGRADED = { engine: 'fake-2' };

describe('after an upgrade of the engine', () => {
  test('a template is captured anew for its first use, once, and not again by the same engine', async () => {
    const { host, prepared } = createHost();
    const former = await startLifecycle(host);
    await former.orchestrator.create(CREATE_BASE);
    expect(prepared()).toBe(1);

    const next = await startLifecycle({ ...host, seed: 2, fingerprint: UPGRADED });
    await Promise.all(Array.from({ length: 5 }, () => next.orchestrator.create(CREATE_BASE)));
    expect(prepared()).toBe(2);
    const third = await startLifecycle({ ...host, seed: 3, fingerprint: UPGRADED });
    await third.orchestrator.create(CREATE_BASE);
    expect(prepared()).toBe(2);
  });
});

test('a paused record without any of the fields that came later, or with more, resumes as it was', async () => {
  const { host } = createHost();
  const former = await startLifecycle(host);
  const { id } = await former.orchestrator.create(CREATE_BASE);
  const program = { kind: 'sleep', milliseconds: 600_000 } as const;
  const process = { uid: 1000, tag: '', config: new Uint8Array(), pty: false, stdinOpen: false, program };
  const { pid } = host.world.machineOf(id).guest.spawn({ ...process, killInMs: undefined });
  await former.orchestrator.pause(id);
  const record = JSON.parse(host.disk.sandboxes.get(id) ?? '') as Record<string, unknown>;
  for (const later of ['buildId', 'timeoutKeeps', 'customExtensionParams', 'captureKind', 'engineGone', 'runtime']) {
    delete record[later];
  }
  host.disk.sandboxes.set(id, JSON.stringify({ ...record, ofTheFuture: [1] }));

  const next = await startLifecycle({ ...host, seed: 2 });
  expect(next.orchestrator.get(id)).toMatchObject({ state: 'paused', captureKind: 'full', timeoutKeeps: 'full' });
  expect((await next.orchestrator.connect(id, 10)).resumed).toBe(true);
  expect(host.world.machineOf(id).guest.processes.map((found) => found.pid)).toEqual([pid]);
});

test('a paused record whose backend state lacks newer fields and has unknown ones resumes as it was', async () => {
  const { host } = createHost();
  const former = await startLifecycle(host);
  const { id } = await former.orchestrator.create(CREATE_BASE);
  await former.orchestrator.pause(id);
  const record = JSON.parse(host.disk.sandboxes.get(id) ?? '') as Record<string, unknown>;
  host.disk.sandboxes.set(id, JSON.stringify({ ...record, runtime: { backend: 'fake', ofTheFuture: true } }));
  const next = await startLifecycle({ ...host, seed: 2 });
  expect((await next.orchestrator.connect(id, 10)).resumed).toBe(true);
});
