import { PlatformError, type SnapshotRecord, snapshotId } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import type { EnvdOptions } from '@agentenv/envd';
import { createFakeWorld, type FakeWorld } from '@agentenv/runtime';
import { createMemoryDisk, hooked } from '@agentenv/storage/testing';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, LIST_ALL, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

const failure = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'done',
    (error: unknown) => error,
  );

const running = async ({ orchestrator }: LifecycleHarness, changes: Partial<typeof CREATE_BASE> = {}) =>
  (await orchestrator.create({ ...CREATE_BASE, ...changes })).id;

const idOf = (snapshot: SnapshotRecord): string => snapshotId(snapshot, 'default');
const all = ({ snapshots }: LifecycleHarness) => snapshots.list({ sandboxId: undefined, name: undefined });

function write(world: FakeWorld, sandboxId: string, path: string, text: string): void {
  const owner = { uid: 1000, gid: 1000, mode: 0o644, xattrs: new Map() };
  world.machineOf(sandboxId).guest.files.write({ path, ...owner, content: Buffer.from(text) });
}

function read(world: FakeWorld, sandboxId: string, path: string): string | undefined {
  const { files } = world.machineOf(sandboxId).guest;
  return files.has(path) ? files.text(path) : undefined;
}

function startSleeper(world: FakeWorld, sandboxId: string): number {
  return world.machineOf(sandboxId).guest.spawn({
    ...{ uid: 1000, tag: '', config: new Uint8Array(), pty: false, stdinOpen: false, killInMs: undefined },
    program: { kind: 'sleep', milliseconds: 600_000 },
  }).pid;
}

const NOTE = '/home/user/note';

/** Runs on as before: takes requests, keeps its generation, record and place; no snapshot and no files came of it. */
async function expectUntouched(harness: LifecycleHarness, id: string, instanceId: string): Promise<void> {
  expect(harness.orchestrator.get(id)).toMatchObject({ state: 'running', instanceId });
  expect(harness.orchestrator.target(id).kind).toBe('ready');
  await harness.world.machineOf(id).guest.running(AbortSignal.timeout(1_000));
  expect(all(harness)).toEqual([]);
  expect(harness.disk.captures.size).toBe(0);
  expect(harness.disk.snapshots.size).toBe(0);
  // And it can be tried again.
  await harness.orchestrator.snapshot(id, undefined);
  expect(all(harness)).toHaveLength(1);
}

describe('a snapshot', () => {
  test('leaves its source as it was: the same generation, tokens, timeout and streams', async () => {
    const harness = await startLifecycle();
    const id = await running(harness);
    const before = harness.orchestrator.get(id);
    const target = harness.orchestrator.target(id);
    const written = harness.stored();
    const closed: string[] = [];
    if (target.kind === 'ready') {
      target.sockets.add({ destroy: () => closed.push('destroyed'), once: () => undefined });
    }
    await harness.orchestrator.snapshot(id, 'kept');
    expect(harness.orchestrator.get(id)).toEqual(before);
    expect(harness.orchestrator.target(id)).toEqual(target);
    expect(harness.stored()).toEqual(written);
    expect(closed).toEqual([]);
    expect(harness.envdEnds).toEqual([]);
    await harness.clock.advance(301_000);
    expect(harness.leftovers()).toEqual({});
  });

  test('starts sandboxes with its files and processes, as somebody else with defaults of their own', async () => {
    const services: EnvdOptions[] = [];
    const harness = await startLifecycle({
      createEnvd: (options) => {
        services.push(options);
        return { handle() {}, async [Symbol.asyncDispose]() {} };
      },
    });
    const { orchestrator, world } = harness;
    const source = await running(harness, { envVars: { A: 'source', B: 'source' }, metadata: { of: 'source' } });
    write(world, source, NOTE, 'before');
    const pid = startSleeper(world, source);
    const snapshot = await orchestrator.snapshot(source, 'data:v1');
    write(world, source, NOTE, 'after');

    const children = await Promise.all(
      ['data:v1', 'default/data:v1', snapshot.buildId, `${snapshot.templateId}:v1`].map((template) =>
        orchestrator.create({ ...CREATE_BASE, template, envVars: { B: 'child', C: 'child' }, timeoutSeconds: 60 }),
      ),
    );
    for (const child of children) {
      expect(child).toMatchObject({
        ...{ templateId: snapshot.templateId, buildId: snapshot.buildId, alias: 'data', metadata: {} },
        envVars: { A: 'source', B: 'child', C: 'child' },
      });
      expect(read(world, child.id, NOTE)).toBe('before');
      expect(read(world, child.id, '/run/e2b/.E2B_SANDBOX_ID')).toBe(child.id);
      expect(world.machineOf(child.id).guest.hostname).toBe(child.id);
      expect(world.machineOf(child.id).guest.processes.map((process) => process.pid)).toEqual([pid]);
      write(world, child.id, NOTE, child.id);
    }
    expect(children.map(({ id }) => read(world, id, NOTE))).toEqual(children.map(({ id }) => id));
    expect(read(world, source, NOTE)).toBe('after');
    const parties = [orchestrator.get(source), ...children];
    for (const secret of [
      ({ id }: (typeof parties)[number]) => id,
      ({ instanceId }: (typeof parties)[number]) => instanceId,
      ({ channelKey }: (typeof parties)[number]) => channelKey,
      (record: (typeof parties)[number]) => orchestrator.accessToken(record),
    ]) {
      expect(new Set(parties.map(secret)).size).toBe(parties.length);
    }
    expect(services.at(-1)).toMatchObject({ defaultUser: 'user', envVars: { A: 'source', B: 'child', C: 'child' } });
    expect(harness.templates.find('data')).toMatchObject({ spawnCount: 4, names: ['data'] });
  });

  test('outlives its source, and the server', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    const id = await running(former);
    write(world, id, NOTE, 'kept');
    const snapshot = await former.orchestrator.snapshot(id, undefined);
    await former.orchestrator.kill(id, 'test');
    expect(former.snapshots.list({ sandboxId: id, name: undefined })).toEqual([snapshot]);
    const next = await startLifecycle({ world, disk, seed: 2 });
    expect(all(next)).toEqual([snapshot]);
    const child = await next.orchestrator.create({ ...CREATE_BASE, template: idOf(snapshot) });
    expect(child).toMatchObject({ templateId: snapshot.templateId, alias: undefined });
    expect(read(world, child.id, NOTE)).toBe('kept');
  });

  test('of a sandbox that was paused in between is like any other', async () => {
    const harness = await startLifecycle();
    const id = await running(harness);
    write(harness.world, id, NOTE, 'first');
    await harness.orchestrator.pause(id);
    await harness.orchestrator.resume(id, 100);
    const snapshot = await harness.orchestrator.snapshot(id, undefined);
    const child = await running(harness, { template: idOf(snapshot) });
    expect(read(harness.world, child, NOTE)).toBe('first');
    await harness.orchestrator.pause(child);
    await harness.orchestrator.resume(child, 100);
    expect(read(harness.world, child, NOTE)).toBe('first');
    for (const sandbox of [id, child]) await harness.orchestrator.kill(sandbox, 'test');
    expect(harness.leftovers()).toEqual({});
  });

  test('keeps where it came from, over chains; deleting what is above breaks nothing below', async () => {
    const harness = await startLifecycle();
    const { orchestrator, world } = harness;
    let sandbox = await running(harness);
    let origin = { templateId: orchestrator.get(sandbox).templateId, buildId: orchestrator.get(sandbox).buildId };
    const chain: SnapshotRecord[] = [];
    for (let generation = 0; generation < 4; generation++) {
      write(world, sandbox, `${NOTE}-${generation}`, `of ${generation}`);
      const snapshot = await orchestrator.snapshot(sandbox, `link-${generation}`);
      expect(snapshot).toMatchObject({ sandboxId: sandbox, origin });
      chain.push(snapshot);
      const child = await running(harness, { template: idOf(snapshot) });
      await orchestrator.kill(sandbox, 'test');
      sandbox = child;
      origin = { templateId: snapshot.templateId, buildId: snapshot.buildId };
    }
    // All but the one the last sandbox runs on.
    for (const snapshot of chain.slice(0, -1)) await orchestrator.deleteTemplate(idOf(snapshot));
    const last = await running(harness, { template: idOf(chain.at(-1) as SnapshotRecord) });
    for (const id of [sandbox, last]) {
      for (let generation = 0; generation < 4; generation++) {
        expect(read(world, id, `${NOTE}-${generation}`)).toBe(`of ${generation}`);
      }
    }
    expect(harness.disk.captures.size).toBe(1);
  });

  test('of a name in use is a new build of it; sandboxes of the former one go on and it can be reached', async () => {
    const harness = await startLifecycle();
    const { orchestrator, world } = harness;
    const source = await running(harness);
    write(world, source, NOTE, 'one');
    const first = await orchestrator.snapshot(source, 'data');
    const early = await running(harness, { template: 'data' });
    write(world, source, NOTE, 'two');
    const second = await orchestrator.snapshot(source, 'data');
    expect(second.templateId).toBe(first.templateId);
    expect(read(world, early, NOTE)).toBe('one');
    expect(read(world, await running(harness, { template: 'data' }), NOTE)).toBe('two');
    expect(read(world, await running(harness, { template: first.buildId }), NOTE)).toBe('one');
    expect(harness.templates.find('data')).toMatchObject({
      id: first.templateId,
      buildId: second.buildId,
      builds: [{ buildId: second.buildId }, { buildId: first.buildId }],
    });
    const listed = orchestrator.list({ ...LIST_ALL, template: 'data' }).sandboxes;
    expect(listed.map(({ id }) => id)).toContain(early);
    expect(listed).toHaveLength(3);
  });

  test.each([
    ['base', "name 'base' belongs to a template"],
    ['Base:v2', "name 'base' belongs to a template"],
    ['a b', 'invalid name'],
    ['', 'invalid name'],
    ['elsewhere/data', "the namespace of this server is 'default'"],
  ])('with the name %j is refused before anything is captured', async (name, why) => {
    const harness = await startLifecycle();
    const id = await running(harness);
    await expect(harness.orchestrator.snapshot(id, name)).rejects.toMatchObject({
      code: 'invalid_argument',
      message: expect.stringContaining(why),
    });
    expect(harness.counted).not.toContain('snapshotCaptured');
    expect(harness.disk.captures.size).toBe(0);
  });

  test('of a sandbox that does not run is a conflict, of an unknown one not found', async () => {
    const harness = await startLifecycle();
    const id = await running(harness);
    await harness.orchestrator.pause(id);
    const kept = new Set(harness.disk.captures);
    await expect(harness.orchestrator.snapshot(id, undefined)).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining('paused'),
    });
    await expect(harness.orchestrator.snapshot('unknown', undefined)).rejects.toMatchObject({ code: 'not_found' });
    expect(harness.disk.captures).toEqual(kept);
  });

  test('that cannot be captured leaves everything as it was', async () => {
    const harness = await startLifecycle();
    const id = await running(harness);
    const { instanceId } = harness.orchestrator.get(id);
    harness.world.faults.next('capture', { kind: 'fail', error: new PlatformError('no_space', 'disk full') });
    expect(await failure(harness.orchestrator.snapshot(id, 'data'))).toMatchObject({ code: 'no_space' });
    await expectUntouched(harness, id, instanceId);
  });

  test('goes on when its caller does not wait, and the end of the server waits for it', async () => {
    const writing = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    const harness = await startLifecycle({
      async intercept({ kind }, apply) {
        if (kind === 'put-snapshots') {
          writing.resolve();
          await goOn.promise;
        }
        await apply();
      },
    });
    const id = await running(harness);
    const asked = harness.orchestrator.snapshot(id, 'data');
    await writing.promise;
    const ending = harness.orchestrator[Symbol.asyncDispose]();
    await harness.until(() => harness.world.machines.size === 0);
    goOn.resolve();
    await ending;
    expect(await asked).toMatchObject({ name: 'data' });
    expect(harness.disk.snapshots.size).toBe(1);
    await expect(harness.orchestrator.snapshot(id, undefined)).rejects.toMatchObject({ code: 'unavailable' });
  });
});

describe('a kill of the source', () => {
  test('until the capture is complete leaves no snapshot', async () => {
    const harness = await startLifecycle();
    const id = await running(harness);
    const fault = harness.world.faults.next('capture', { kind: 'hang' });
    const asked = failure(harness.orchestrator.snapshot(id, 'data'));
    await fault.hit;
    await harness.orchestrator.kill(id, 'test');
    expect(await asked).toMatchObject({ code: 'killed' });
    await harness.until(() => harness.disk.captures.size === 0);
    expect(all(harness)).toEqual([]);
    expect(harness.leftovers()).toEqual({});
  });

  test('after that changes nothing about it', async () => {
    const writing = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    const harness = await startLifecycle({
      async intercept({ kind }, apply) {
        if (kind === 'put-snapshots') {
          writing.resolve();
          await goOn.promise;
        }
        await apply();
      },
    });
    const id = await running(harness);
    write(harness.world, id, NOTE, 'kept');
    const asked = harness.orchestrator.snapshot(id, 'data');
    await writing.promise;
    await harness.orchestrator.kill(id, 'test');
    goOn.resolve();
    const snapshot = await asked;
    expect(all(harness)).toEqual([snapshot]);
    expect(read(harness.world, await running(harness, { template: 'data' }), NOTE)).toBe('kept');
  });
});

describe('deleting', () => {
  test('is refused while a sandbox that was started from it runs or is paused, whichever build', async () => {
    const harness = await startLifecycle();
    const { orchestrator } = harness;
    const source = await running(harness);
    const first = await orchestrator.snapshot(source, 'data');
    const child = await running(harness, { template: 'data' });
    const second = await orchestrator.snapshot(source, 'data');
    const inUse = { code: 'invalid_argument', message: expect.stringContaining('in use') };
    await expect(orchestrator.deleteTemplate('data')).rejects.toMatchObject(inUse);
    await expect(orchestrator.deleteTemplate(first.buildId)).rejects.toMatchObject(inUse);
    await orchestrator.pause(child);
    await expect(orchestrator.deleteTemplate(`${first.buildId}:default`)).rejects.toMatchObject(inUse);
    // The newer build is nobody's, and the source was not started from either.
    await orchestrator.deleteTemplate(idOf(second));
    await expect(orchestrator.deleteTemplate(idOf(second))).rejects.toMatchObject({ code: 'not_found' });
    await orchestrator.kill(child, 'test');
    await orchestrator.deleteTemplate(first.templateId);
    expect(all(harness)).toEqual([]);
    expect(harness.disk.captures.size).toBe(0);
  });

  test('is refused while a sandbox is only being started from it', async () => {
    const harness = await startLifecycle();
    const source = await running(harness);
    const snapshot = await harness.orchestrator.snapshot(source, 'data');
    const fault = harness.world.faults.next('start', { kind: 'hang' });
    const creating = harness.orchestrator.create({ ...CREATE_BASE, template: 'data' });
    await fault.hit;
    await expect(harness.orchestrator.deleteTemplate('data')).rejects.toMatchObject({ code: 'invalid_argument' });
    fault.release();
    const { id } = await creating;
    await harness.orchestrator.kill(id, 'test');
    await harness.orchestrator.deleteTemplate(idOf(snapshot));
  });

  test('is refused while a sandbox looks for a place on the host to be started from it', async () => {
    const looking = Promise.withResolvers<void>();
    const look = Promise.withResolvers<void>();
    let waits = false;
    const harness = await startLifecycle({
      async hostCapacity() {
        if (waits) {
          looking.resolve();
          await look.promise;
        }
        return { totalMemoryMB: 24_000, availableMemoryMB: 22_000, freeDiskMB: 200_000 };
      },
    });
    await harness.orchestrator.snapshot(await running(harness), 'data');
    waits = true;
    const creating = harness.orchestrator.create({ ...CREATE_BASE, template: 'data' });
    await looking.promise;
    await expect(harness.orchestrator.deleteTemplate('data')).rejects.toMatchObject({ code: 'invalid_argument' });
    look.resolve();
    await creating;
  });

  test('is refused for a sandbox that a former server paused', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    await former.orchestrator.snapshot(await running(former), 'data');
    const child = await running(former, { template: 'data' });
    await former.orchestrator.pause(child);
    const next = await startLifecycle({ world, disk, seed: 2 });
    await expect(next.orchestrator.deleteTemplate('data')).rejects.toMatchObject({ code: 'invalid_argument' });
    await next.orchestrator.kill(child, 'test');
    await next.orchestrator.deleteTemplate('data');
    // What ran goes on.
    for (const { id } of next.orchestrator.list(LIST_ALL).sandboxes) await next.orchestrator.kill(id, 'test');
    expect(next.leftovers()).toEqual({});
  });

  test('one build leaves the others; derived snapshots never stand in the way', async () => {
    const harness = await startLifecycle();
    const { orchestrator, world } = harness;
    const source = await running(harness);
    write(world, source, NOTE, 'kept');
    const snapshot = await orchestrator.snapshot(source, 'data');
    const child = await running(harness, { template: 'data' });
    const derived = await orchestrator.snapshot(child, 'data:derived');
    await orchestrator.kill(child, 'test');
    await orchestrator.deleteTemplate(idOf(snapshot));
    expect(all(harness)).toEqual([derived]);
    await expect(orchestrator.create({ ...CREATE_BASE, template: 'data' })).rejects.toMatchObject({
      code: 'not_found',
      message: "tag 'default' does not exist for template 'data'",
    });
    expect(read(world, await running(harness, { template: 'data:derived' }), NOTE)).toBe('kept');
  });

  test.each([
    ['base', 'invalid_argument'],
    ['base:v1', 'invalid_argument'],
    ['nothing', 'not_found'],
    ['default/nothing:default', 'not_found'],
    ['019b76da-a800-7000-8000-0000000000ff', 'not_found'],
    ['a b', 'invalid_argument'],
  ])('%s is %s', async (reference, code) => {
    const harness = await startLifecycle();
    await expect(harness.orchestrator.deleteTemplate(reference)).rejects.toMatchObject({ code });
    await running(harness);
  });
});

describe('a create from a snapshot', () => {
  const FILES = ['memory.json', 'disk.json', 'state.json', 'manifest.json'];

  async function snapshotted(harness: LifecycleHarness): Promise<{ snapshot: SnapshotRecord; directory: string }> {
    const snapshot = await harness.orchestrator.snapshot(await running(harness), 'data');
    using lease = await harness.snapshots.lease(snapshot.buildId);
    return { snapshot, directory: lease.capture.directory };
  }

  test.each(FILES.flatMap((file) => ['cut short', 'changed', 'missing'].map((damage) => [file, damage] as const)))(
    'whose %s is %s is refused; the source and other snapshots are not affected',
    async (file, damage) => {
      const harness = await startLifecycle();
      const { directory } = await snapshotted(harness);
      const other = await harness.orchestrator.snapshot(await running(harness), 'other');
      const content = Buffer.from((await harness.world.artifacts.get(directory, file)) ?? []);
      const before = harness.world.machines.size;
      if (damage === 'missing') {
        const kept = await Promise.all(
          FILES.filter((name) => name !== file).map(
            async (name) => [name, await harness.world.artifacts.get(directory, name)] as const,
          ),
        );
        await harness.world.artifacts.remove(directory);
        for (const [name, bytes] of kept) await harness.world.artifacts.put(directory, name, bytes ?? new Uint8Array());
      } else {
        const damaged = damage === 'cut short' ? content.subarray(0, content.length / 2) : Buffer.from(content);
        if (damage === 'changed') damaged[content.length >> 1] = (damaged[content.length >> 1] ?? 0) ^ 1;
        await harness.world.artifacts.put(directory, file, damaged);
      }
      const error = await failure(harness.orchestrator.create({ ...CREATE_BASE, template: 'data' }));
      expect(error).toBeInstanceOf(PlatformError);
      expect(error).toMatchObject({ message: expect.stringMatching(/damaged|cannot be read/) });
      expect(harness.world.machines.size).toBe(before);
      await running(harness, { template: idOf(other) });
      await harness.orchestrator.snapshot(harness.orchestrator.list(LIST_ALL).sandboxes[0]?.id ?? '', 'data');
      await running(harness, { template: 'data' });
    },
  );

  test('of another kind of host is a conflict naming both, before anything starts', async () => {
    const world = createFakeWorld({ clock: createFakeClock() });
    const disk = createMemoryDisk();
    const former = await startLifecycle({ world, disk });
    await snapshotted(former);
    const upgraded = { engine: 'fake-2' };
    const next = await startLifecycle({ world, disk, seed: 2, fingerprint: upgraded });
    await expect(next.orchestrator.create({ ...CREATE_BASE, template: 'data' })).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringMatching(/engine=fake-1.*engine=fake-2/),
    });
    expect(next.counted.filter((call) => call.startsWith('createFailed'))).toEqual([]);
    // Nothing but the sandbox it was taken of, which goes on.
    const { sandboxes } = next.orchestrator.list(LIST_ALL);
    expect(sandboxes.map(({ state }) => state)).toEqual(['running']);
    for (const { id } of sandboxes) await next.orchestrator.kill(id, 'test');
    expect(next.leftovers()).toEqual({});
    // It is listed, and can be deleted.
    expect(all(next)).toHaveLength(1);
    await next.orchestrator.deleteTemplate('data');
  });
});

describe('storage that fails', () => {
  test('at any call of a snapshot leaves the source running and the snapshots whole', async () => {
    for (let k = 1, hit = true; hit; k++) {
      let calls = 0;
      let armed = false;
      hit = false;
      const fail = (call: string): void => {
        if (!armed || ++calls !== k) return;
        hit = true;
        throw new PlatformError('internal', `call ${k}, ${call}, fails`);
      };
      const hook = { before: fail, after() {} };
      const clock = createFakeClock();
      const world = createFakeWorld({ clock });
      const harness = await startLifecycle({
        world: { ...world, artifacts: hooked(world.artifacts, 'artifacts', hook) },
        wrapCaptures: (captures) => hooked(captures, 'captures', hook),
        async intercept({ kind }, apply) {
          fail(`ledger.${kind}`);
          await apply();
        },
      });
      const source = await running(harness);
      write(harness.world, source, NOTE, 'first');
      const first = await harness.orchestrator.snapshot(source, 'data');
      write(harness.world, source, NOTE, 'second');
      armed = true;
      const outcome = await failure(harness.orchestrator.snapshot(source, 'data'));
      armed = false;
      const when = `call ${k}: ${String(outcome)}`;
      expect(harness.orchestrator.get(source).state, when).toBe('running');
      await harness.world.machineOf(source).guest.running(AbortSignal.timeout(1_000));
      const expected = outcome === 'done' ? 'second' : 'first';
      expect(read(harness.world, await running(harness, { template: 'data' }), NOTE), when).toBe(expected);
      expect(read(harness.world, await running(harness, { template: first.buildId }), NOTE), when).toBe('first');
      expect(await failure(harness.orchestrator.snapshot(source, 'data')), when).toBe('done');
      expect(harness.disk.captures, when).toEqual(new Set(all(harness).map(({ buildId }) => buildId)));
      expect(all(harness), when).toHaveLength(outcome === 'done' ? 3 : 2);
      if (!hit) {
        expect(outcome).toBe('done');
        expect(calls).toBeGreaterThan(5);
      }
    }
  });
});
