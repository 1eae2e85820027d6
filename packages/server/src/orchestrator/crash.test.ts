import { createFakeClock } from '@agentenv/core/testing';
import { createFakeWorld } from '@agentenv/runtime';
import { createMemoryDisk } from '@agentenv/storage/testing';
import { describe, expect, test } from 'vitest';
import type { LedgerIntercept } from '../testing/intercepted-ledger.ts';
import { CREATE_BASE, LIST_ALL, startLifecycle } from '../testing/lifecycle-harness.ts';

const hang = () => new Promise<never>(() => {});

/** The callers of a server that dies are gone as well: whatever becomes of their requests, nobody learns it. */
function abandon(request: Promise<unknown>): void {
  request.catch(() => undefined);
}

/**
 * The server dies at one ledger write: `before` it is on disk or `after`. From then on nothing of that server ever goes on:
 * its ledger answers nothing and its clock stands still.
 */
function dyingAt(write: number, when: 'before' | 'after', died: () => void): LedgerIntercept {
  let dead = false;
  return async ({ number }, apply) => {
    if (dead) return await hang();
    if (number === write) {
      dead = true;
      if (when === 'after') await apply();
      died();
      return await hang();
    }
    return await apply();
  };
}

/** Writes of one sandbox: two of its create, one of its timeout, one of its kill. */
const WRITES = [1, 2, 3, 4];
const POINTS = WRITES.flatMap((write) => [['before', write] as const, ['after', write] as const]);

describe('after kill -9 of the server', () => {
  test.each(POINTS)(
    '%s ledger write %i of create, timeout, kill the next start leaves no orphan',
    async (when, write) => {
      const world = createFakeWorld({ clock: createFakeClock() });
      const disk = createMemoryDisk();
      const dead = Promise.withResolvers<void>();
      const former = await startLifecycle({ world, disk, intercept: dyingAt(write, when, dead.resolve) });
      const session = async (): Promise<void> => {
        const { id } = await former.orchestrator.create(CREATE_BASE);
        await former.orchestrator.setTimeout(id, 1_000);
        await former.orchestrator.kill(id, 'test');
      };
      abandon(session());
      await dead.promise;

      const left = world.machines.size;
      const next = await startLifecycle({ world, disk, seed: 2 });
      expect(next.leftovers()).toEqual({});
      expect(next.counted).toEqual([`reconciled:${left}`]);
      // And it is a server like any other.
      const { id } = await next.orchestrator.create(CREATE_BASE);
      await next.orchestrator.kill(id, 'test');
      expect(next.leftovers()).toEqual({});
    },
  );

  test('many sandboxes in every stage are gone, whatever the ledger knows of them', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const dead = Promise.withResolvers<void>();
    const former = await startLifecycle({ world, disk, intercept: dyingAt(15, 'before', dead.resolve) });
    await Promise.all(Array.from({ length: 5 }, () => former.orchestrator.create(CREATE_BASE)));
    const creating = Array.from({ length: 3 }, () => world.faults.next('activate', { kind: 'hang' }));
    for (let index = 0; index < 3; index++) abandon(former.orchestrator.create(CREATE_BASE));
    await Promise.all(creating.map(({ hit }) => hit));
    for (const { id } of former.orchestrator.list(LIST_ALL).sandboxes.slice(0, 4)) {
      abandon(former.orchestrator.kill(id, 'test'));
    }
    await dead.promise;
    // One that the ledger never heard of, as if its disk had lost it.
    const [lost] = disk.sandboxes.keys();
    if (lost !== undefined) disk.sandboxes.delete(lost);
    expect(world.machines.size + disk.sandboxes.size).toBeGreaterThan(0);

    const next = await startLifecycle({ world, disk, seed: 2 });
    expect(next.leftovers()).toEqual({});
    expect(next.log.find('warn', 'former server')).toHaveLength(1);
  });

  test('a crash during the clean-up itself is repaired by the start after it', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    await Promise.all(Array.from({ length: 3 }, () => former.orchestrator.create(CREATE_BASE)));
    const dead = Promise.withResolvers<void>();
    abandon(startLifecycle({ world, disk, seed: 2, intercept: dyingAt(2, 'before', dead.resolve) }));
    await dead.promise;
    expect(disk.sandboxes.size).toBeGreaterThan(0);
    const next = await startLifecycle({ world, disk, seed: 3 });
    expect(next.leftovers()).toEqual({});
  });

  test('the template is the same after a restart and its count goes on', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    await former.orchestrator.create(CREATE_BASE);
    await former.clock.advance(1_000);
    const before = former.templates.find('base');
    const next = await startLifecycle({ world, disk, seed: 2 });
    await next.orchestrator.create(CREATE_BASE);
    expect(next.templates.find('base')).toMatchObject({ id: before?.id, buildId: before?.buildId, spawnCount: 2 });
  });

  test('a ledger that cannot be read stops the start', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    await expect(
      startLifecycle({
        world,
        wrapBackend: (backend) => ({ ...backend, reconcile: () => Promise.reject(new Error('no netns')) }),
      }),
    ).rejects.toThrow('no netns');
  });
});
