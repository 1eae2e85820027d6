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

/** Writes of one sandbox: two of its create, one of its timeout, two of its kill. */
const WRITES = [1, 2, 3, 4, 5];
const POINTS = WRITES.flatMap((write) => [['before', write] as const, ['after', write] as const]);

describe('after kill -9 of the server', () => {
  test.each(POINTS)(
    '%s ledger write %i of create, timeout, kill the next start adopts what ran and leaves no orphan',
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

      const left = [...world.machines.values()].map(({ engine }) => engine);
      // From the record of its running to that of its kill.
      const runs = when === 'after' ? write === 2 || write === 3 : write === 3 || write === 4;
      const next = await startLifecycle({ world, disk, seed: 2 });
      const listed = next.orchestrator.list(LIST_ALL).sandboxes;
      expect(listed.map(({ state }) => state)).toEqual(runs ? ['running'] : []);
      expect(next.stored().map((record) => record.id)).toEqual(listed.map((record) => record.id));
      expect([...world.machines.values()].map(({ engine }) => engine)).toEqual(runs ? left : []);
      expect(next.counted).toEqual(runs ? ['reconciled:0', 'adopted:1'] : [`reconciled:${left.length}`]);
      for (const record of listed) await next.orchestrator.kill(record.id, 'test');
      expect(next.leftovers()).toEqual({});
      expect(world.slots.inUse).toBe(0);
      // And it is a server like any other.
      const { id } = await next.orchestrator.create(CREATE_BASE);
      await next.orchestrator.kill(id, 'test');
      expect(next.leftovers()).toEqual({});
    },
  );

  /** Writes: two of the create, one of each pause, two of the resume, two of the kill. */
  const PAUSES = [
    // What ran runs on, also when it was held for a capture …
    ['before', 3, 'running'],
    ['after', 5, 'running'],
    ['before', 6, 'running'],
    // … a pause that is on disk has happened, and a resume that is not there in full has not.
    ['after', 3, 'paused'],
    ['before', 4, 'paused'],
    ['after', 4, 'paused'],
    ['before', 5, 'paused'],
    ['after', 6, 'paused'],
    ['before', 7, 'paused'],
    ['after', 7, 'gone'],
  ] as const;

  const PAUSES_OF_BOTH_KINDS = (['full', 'disk'] as const).flatMap((kind) =>
    PAUSES.map(([when, write, expected]) => [when, write, expected, kind] as const),
  );

  test.each(PAUSES_OF_BOTH_KINDS)(
    '%s ledger write %i of create, pause, resume, pause, kill nothing is half done: it is %s (%s)',
    async (when, write, expected, kind) => {
      const world = createFakeWorld({ clock: createFakeClock() });
      const disk = createMemoryDisk();
      const dead = Promise.withResolvers<void>();
      const former = await startLifecycle({ world, disk, intercept: dyingAt(write, when, dead.resolve) });
      let pid = 0;
      const session = async (): Promise<void> => {
        const { id } = await former.orchestrator.create(CREATE_BASE);
        const program = { kind: 'sleep', milliseconds: 600_000 } as const;
        const process = { uid: 1000, tag: '', config: new Uint8Array(), pty: false, stdinOpen: false, program };
        pid = world.machineOf(id).guest.spawn({ ...process, killInMs: undefined }).pid;
        await former.orchestrator.pause(id, kind);
        await former.orchestrator.resume(id, 100);
        await former.orchestrator.pause(id, kind);
        await former.orchestrator.kill(id, 'test');
      };
      abandon(session());
      await dead.promise;

      const lives = kind === 'full' || (when === 'before' && write === 3);
      const next = await startLifecycle({ world, disk, seed: 2 });
      const listed = next.orchestrator.list(LIST_ALL).sandboxes;
      expect(listed).toEqual(next.stored().map((record) => next.orchestrator.get(record.id)));
      expect(listed.map(({ state }) => state)).toEqual(expected === 'gone' ? [] : [expected]);
      expect(world.machines.size).toBe(expected === 'running' ? 1 : 0);
      const named = listed.flatMap(({ capture }) => capture ?? []);
      expect(disk.captures).toEqual(new Set(named));
      for (const { id } of listed) {
        expect((await next.orchestrator.connect(id, 10)).resumed).toBe(expected === 'paused');
        expect(world.machines.size).toBe(1);
        expect(world.machineOf(id).guest.processes.map((process) => process.pid)).toEqual(lives ? [pid] : []);
        await next.orchestrator.kill(id, 'test');
      }
      expect(next.leftovers()).toEqual({});
    },
  );

  /** Writes: two of each create, one of each snapshot, one of the deletion, two of each kill. */
  const SNAPSHOTS = [
    ['before', 3, []],
    ['after', 3, ['data']],
    ['before', 4, ['data']],
    ['after', 5, ['data']],
    ['before', 6, ['data']],
    ['after', 6, ['data', 'former']],
    ['before', 7, ['data', 'former']],
    ['after', 7, ['data', 'former']],
    ['before', 8, ['data', 'former']],
    ['after', 8, ['data', 'former']],
    ['before', 9, ['data', 'former']],
    ['after', 9, ['data']],
    ['before', 10, ['data']],
    ['after', 11, ['data']],
  ] as const;

  test.each(SNAPSHOTS)(
    '%s ledger write %i of create, snapshot, create from it, snapshot of the same name, kill, delete: there is %j',
    async (when, write, expected) => {
      const world = createFakeWorld({ clock: createFakeClock() });
      const disk = createMemoryDisk();
      const dead = Promise.withResolvers<void>();
      const former = await startLifecycle({ world, disk, intercept: dyingAt(write, when, dead.resolve) });
      const acknowledged: string[] = [];
      const session = async (): Promise<void> => {
        const { orchestrator } = former;
        const source = await orchestrator.create(CREATE_BASE);
        const first = await orchestrator.snapshot(source.id, 'data');
        acknowledged.push(first.buildId);
        const child = await orchestrator.create({ ...CREATE_BASE, template: 'data' });
        acknowledged.push((await orchestrator.snapshot(source.id, 'data')).buildId);
        await orchestrator.kill(child.id, 'test');
        await orchestrator.deleteTemplate(first.buildId);
        await orchestrator.kill(source.id, 'test');
      };
      abandon(session());
      await dead.promise;

      const next = await startLifecycle({ world, disk, seed: 2 });
      const found = next.snapshots.list({ sandboxId: undefined, name: 'data' });
      expect(found.map(({ tags }) => (tags.length === 1 ? 'data' : 'former')).toSorted()).toEqual(expected);
      expect(disk.captures).toEqual(new Set(found.map(({ buildId }) => buildId)));
      if (write < 9) for (const buildId of acknowledged) expect(disk.captures).toContain(buildId);
      for (const { id } of next.orchestrator.list(LIST_ALL).sandboxes) await next.orchestrator.kill(id, 'test');
      expect(next.leftovers()).toEqual({});
      for (const { buildId } of found) await next.orchestrator.create({ ...CREATE_BASE, template: buildId });
      // The name is in one piece: a new one takes it over.
      const { id } = await next.orchestrator.create(CREATE_BASE);
      const again = await next.orchestrator.snapshot(id, 'data');
      expect(next.templates.find('data')).toMatchObject({ buildId: again.buildId });
      expect(next.snapshots.list({ sandboxId: undefined, name: 'data' }).filter(({ tags }) => tags.length > 0)).toEqual(
        [again],
      );
    },
  );

  /** Writes of a create, a fork into two, and a kill: two of each create, two of the kill. */
  const FORKS = [1, 2, 3, 4, 5, 6, 7, 8].flatMap((write) => [['before', write] as const, ['after', write] as const]);

  test.each(FORKS)('%s ledger write %i of create, fork, kill nothing of a fork is left', async (when, write) => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const dead = Promise.withResolvers<void>();
    const former = await startLifecycle({ world, disk, intercept: dyingAt(write, when, dead.resolve) });
    const session = async (): Promise<void> => {
      const { id } = await former.orchestrator.create(CREATE_BASE);
      await former.orchestrator.fork(id, { count: 2, timeoutSeconds: 60 });
      await former.orchestrator.kill(id, 'test');
    };
    abandon(session());
    await dead.promise;
    // The engine that the other child may have under way is made, or not, before the next server looks.
    for (let turn = 0; turn < 20; turn++) await former.clock.advance(0);

    const next = await startLifecycle({ world, disk, seed: 2 });
    const listed = next.orchestrator
      .list(LIST_ALL)
      .sandboxes.map(({ id }) => id)
      .toSorted();
    expect(listed).toEqual(
      next
        .stored()
        .map(({ id }) => id)
        .toSorted(),
    );
    expect([...world.machines.values()].map(({ sandboxId }) => sandboxId).toSorted()).toEqual(listed);
    expect(disk.captures.size).toBe(0);
    for (const id of listed) await next.orchestrator.kill(id, 'test');
    expect(next.leftovers()).toEqual({});
  });

  test('a crash in the middle of the capture of a fork leaves nothing of it', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    const { id } = await former.orchestrator.create(CREATE_BASE);
    const capture = world.faults.next('capture', { kind: 'hang' });
    abandon(former.orchestrator.fork(id, { count: 2, timeoutSeconds: 60 }));
    await capture.hit;
    expect(disk.captures.size).toBe(1);
    const next = await startLifecycle({ world, disk, seed: 2 });
    expect(disk.captures.size).toBe(0);
    expect(next.orchestrator.list(LIST_ALL).sandboxes.length).toBe(world.machines.size);
  });

  test('a capture that no record names is removed, also by the second start after a crash of the first', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    const { id } = await former.orchestrator.create(CREATE_BASE);
    await former.orchestrator.pause(id);
    const { capture } = former.orchestrator.get(id);
    disk.captures.add('019b76da-a800-7000-8000-0000000000ff');
    const dead = Promise.withResolvers<void>();
    const crashing = startLifecycle({
      world,
      disk,
      seed: 2,
      wrapCaptures: (captures) => ({
        ...captures,
        async remove() {
          dead.resolve();
          return await hang();
        },
      }),
    });
    abandon(crashing);
    await dead.promise;
    const next = await startLifecycle({ world, disk, seed: 3 });
    expect(disk.captures).toEqual(new Set([capture]));
    expect(next.orchestrator.get(id).state).toBe('paused');
  });

  test('a paused sandbox whose capture is not there waits for it, and can be killed', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    const { id } = await former.orchestrator.create(CREATE_BASE);
    const { id: other } = await former.orchestrator.create(CREATE_BASE);
    for (const each of [id, other]) await former.orchestrator.pause(each);
    const captures = [...disk.captures];
    disk.captures.clear();
    const next = await startLifecycle({ world, disk, seed: 2 });
    expect(next.log.find('error', 'its capture is not there')).toHaveLength(2);
    expect(next.orchestrator.get(id).state).toBe('paused');
    await expect(next.orchestrator.connect(id, 10)).rejects.toMatchObject({ code: 'create_failed' });
    await next.orchestrator.kill(other, 'test');
    // It is mounted again.
    for (const capture of captures) disk.captures.add(capture);
    const last = await startLifecycle({ world, disk, seed: 3 });
    expect(last.orchestrator.list(LIST_ALL).sandboxes.map((sandbox) => sandbox.id)).toEqual([id]);
    expect((await last.orchestrator.connect(id, 10)).resumed).toBe(true);
  });

  test('captures that an unreadable record may name are kept, until there is none', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    const { id } = await former.orchestrator.create(CREATE_BASE);
    await former.orchestrator.pause(id);
    const captures = new Set(disk.captures);
    const record = disk.sandboxes.get(id) ?? '';
    disk.sandboxes.set(id, record.slice(0, 40));
    const next = await startLifecycle({ world, disk, seed: 2 });
    expect(next.orchestrator.list(LIST_ALL).sandboxes).toEqual([]);
    expect(disk.captures).toEqual(captures);
    expect(next.log.find('error', 'captures are kept')).toHaveLength(1);
    disk.sandboxes.set(id, record);
    const last = await startLifecycle({ world, disk, seed: 3 });
    expect((await last.orchestrator.connect(id, 10)).resumed).toBe(true);
  });

  test('a paused record of an older or newer version, without or with more fields, still resumes', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    const { id } = await former.orchestrator.create(CREATE_BASE);
    await former.orchestrator.pause(id);
    const { alias: _alias, runtime: _runtime, ...record } = JSON.parse(disk.sandboxes.get(id) ?? '');
    disk.sandboxes.set(id, JSON.stringify({ ...record, ofTheFuture: { anything: true } }));
    const next = await startLifecycle({ world, disk, seed: 2 });
    expect((await next.orchestrator.connect(id, 10)).resumed).toBe(true);
  });

  test('many sandboxes in every stage run on or are gone, whatever the ledger knows of them', async () => {
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
    expect(next.orchestrator.list(LIST_ALL).sandboxes.length).toBe(world.machines.size);
    for (const { id } of next.orchestrator.list(LIST_ALL).sandboxes) await next.orchestrator.kill(id, 'test');
    expect(next.leftovers()).toEqual({});
    expect(next.log.find('warn', 'former server')).toHaveLength(1);
  });

  test('a crash during the clean-up itself is repaired by the start after it', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    await Promise.all(Array.from({ length: 3 }, () => former.orchestrator.create(CREATE_BASE)));
    // Of a version that described its engines less: none of them can be adopted.
    for (const [id, json] of [...disk.sandboxes]) {
      const { runtime: _runtime, ...record } = JSON.parse(json);
      disk.sandboxes.set(id, JSON.stringify(record));
    }
    const dead = Promise.withResolvers<void>();
    abandon(startLifecycle({ world, disk, seed: 2, intercept: dyingAt(2, 'before', dead.resolve) }));
    await dead.promise;
    expect(disk.sandboxes.size).toBeGreaterThan(0);
    const next = await startLifecycle({ world, disk, seed: 3 });
    expect(next.orchestrator.list(LIST_ALL).sandboxes.length).toBe(world.machines.size);
    for (const { id } of next.orchestrator.list(LIST_ALL).sandboxes) await next.orchestrator.kill(id, 'test');
    expect(next.leftovers()).toEqual({});
  });

  test('a sandbox that ran is reached, found by its token and has its deadline; one that is due ends at once', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    const kept = await former.orchestrator.create({ ...CREATE_BASE, timeoutSeconds: 600 });
    const due = await former.orchestrator.create({ ...CREATE_BASE, timeoutSeconds: 5 });
    const clock = createFakeClock();
    await clock.advance(former.clock.now() - clock.now() + 10_000);

    const next = await startLifecycle({ world, disk, clock, seed: 2 });
    await next.until(() => next.orchestrator.target(due.id).kind === 'not-found');
    await next.until(() => next.stored().length === 1);
    expect(next.orchestrator.get(kept.id).deadline).toBe(kept.deadline);
    const target = next.orchestrator.target(kept.id);
    if (target.kind !== 'ready') throw new Error(`the sandbox is ${target.kind}`);
    expect(target.record.id).toBe(kept.id);
    expect(next.orchestrator.findByAccessToken(next.orchestrator.accessToken(kept) ?? '')).toBe(kept.id);
    expect(next.admission.status()).toMatchObject({ sandboxes: 1, starting: 0 });
    await clock.advance(600_000);
    await next.until(() => next.stored().length === 0);
    expect(next.leftovers()).toEqual({});
    expect(world.slots.inUse).toBe(0);
  });

  test('an adopted sandbox is paused, resumed and adopted again', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const first = await startLifecycle({ world, disk });
    const { id } = await first.orchestrator.create(CREATE_BASE);
    const second = await startLifecycle({ world, disk, seed: 2 });
    await second.orchestrator.pause(id);
    await second.orchestrator.resume(id, 100);
    const { engine } = world.machineOf(id);
    const third = await startLifecycle({ world, disk, seed: 3 });
    expect(world.machineOf(id).engine).toBe(engine);
    world.machineOf(id).end('engine-died', 'killed by the test');
    await third.until(() => third.stored().length === 0);
    expect(third.leftovers()).toEqual({});
    expect(world.slots.inUse).toBe(0);
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
