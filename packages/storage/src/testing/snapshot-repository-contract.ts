import {
  type BuildId,
  type Clock,
  createUuidSource,
  type InstanceId,
  PlatformError,
  parseTemplateReference,
  type SandboxId,
  type SnapshotRecord,
  snapshotId,
  type TemplateId,
} from '@agentenv/core';
import { createFakeClock, createRecordingLog, createSeededRandom, type FakeClock } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { CaptureStore } from '../capture-store.ts';
import type { Ledger } from '../ledger.ts';
import {
  DEFAULT_SNAPSHOT_REPOSITORY_CONFIG,
  openSnapshotRepository,
  type SnapshotFacts,
  type SnapshotRepository,
} from '../snapshot-repository.ts';

/** Called around every call of what is below a repository; throws to let that call fail. */
export interface StorageHook {
  readonly before: (call: string) => void | Promise<void>;
  /** The call has had its effect. */
  readonly after: (call: string) => void | Promise<void>;
}

/** The disk of one host, for the length of one test. */
export interface SnapshotPlace extends AsyncDisposable {
  /** What a server works with; again after the ledger before was disposed. */
  open(hook: StorageHook): Promise<{ readonly ledger: Ledger; readonly captures: CaptureStore }>;
  /** Writes a file as a backend does. */
  write(directory: string, name: string, text: string): Promise<void>;
}

interface Server extends AsyncDisposable {
  readonly repository: SnapshotRepository;
  readonly ledger: Ledger;
  readonly captures: CaptureStore;
  readonly clock: FakeClock;
  readonly log: ReturnType<typeof createRecordingLog>;
}

const NO_HOOK: StorageHook = { before() {}, after() {} };

const MANIFEST = {
  formatVersion: 1,
  backend: 'fake',
  fingerprint: { engine: 'fake-1' },
  channelKey: '00'.repeat(16),
};

const SANDBOX = 'i00000000000000000001' as SandboxId;
const FACTS: SnapshotFacts = {
  sandboxId: SANDBOX,
  origin: { templateId: 'i0000000000000000base' as TemplateId, buildId: undefined },
  resources: { vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240 },
  envdVersion: '0.6.13',
  context: { envVars: { A: '1' }, defaultUser: 'user', defaultWorkdir: '/srv', customExtensionParams: { a: 1 } },
};

/** Wraps every asynchronous method of `target` with a hook. */
export function hooked<T extends object>(target: T, name: string, { before, after }: StorageHook): T {
  return new Proxy(target, {
    get(object, key) {
      const member: unknown = Reflect.get(object, key);
      if (typeof member !== 'function') return member;
      if (typeof key === 'symbol') return member.bind(object);
      return async (...parameters: unknown[]) => {
        const call = `${name}.${key}`;
        await before(call);
        const result: unknown = await Reflect.apply(member, object, parameters);
        await after(call);
        return result;
      };
    },
  });
}

/** What every repository of snapshots has to do, wherever it keeps them. */
export function describeSnapshotRepositoryContract(name: string, createPlace: () => Promise<SnapshotPlace>): void {
  describe(`${name} keeps the contract of snapshot repositories`, { timeout: 30_000 }, () => {
    let place: SnapshotPlace;
    let seed = 0;
    beforeEach(async () => {
      place = await createPlace();
    });
    afterEach(async () => {
      await place[Symbol.asyncDispose]();
    });

    /** A server's start: what no record names is removed, as the orchestrator does it. */
    async function start(hook = NO_HOOK): Promise<Server> {
      const clock = createFakeClock();
      await clock.advance(60_000 * seed);
      const rng = createSeededRandom(++seed);
      const log = createRecordingLog();
      const { ledger, captures } = await place.open(hook);
      const repository = await openSnapshotRepository({
        ...{ ledger, captures, clock, rng, log },
        ids: createUuidSource({ clock: clock as Clock, rng }),
        namespace: 'team',
        config: DEFAULT_SNAPSHOT_REPOSITORY_CONFIG,
      });
      const kept = repository.captures();
      for (const id of await captures.list()) if (!kept.has(id)) await captures.remove(id as never);
      return {
        ...{ repository, ledger, captures, clock, log },
        async [Symbol.asyncDispose]() {
          await repository[Symbol.asyncDispose]();
          await ledger[Symbol.asyncDispose]();
        },
      };
    }

    async function publish(
      { repository }: Server,
      as?: { name: string; tag: string },
      facts: Partial<SnapshotFacts> = {},
      manifest: object = MANIFEST,
    ): Promise<SnapshotRecord> {
      await using draft = await repository.begin();
      await place.write(draft.directory, 'manifest.json', JSON.stringify({ ...manifest, of: draft.buildId }));
      return await repository.publish(draft, as, { ...FACTS, ...facts });
    }

    const found = ({ repository }: Server, reference: string): BuildId | undefined =>
      repository.locate(parseTemplateReference(reference))?.build?.buildId;
    const ALL = { sandboxId: undefined, name: undefined };
    const V1 = { name: 'data', tag: 'v1' };
    const DEFAULT = { name: 'data', tag: 'default' };

    test('a published capture is there for this and every later server, with all that was said of it', async () => {
      let published: SnapshotRecord;
      {
        await using server = await start();
        expect(server.repository.list(ALL)).toEqual([]);
        published = await publish(server, V1);
        expect(published).toMatchObject({ ...FACTS, name: 'data', tags: ['v1'], backend: 'fake', spawnCount: 0 });
        expect(server.repository.get(published.buildId)).toEqual(published);
      }
      await using later = await start();
      expect(later.repository.list(ALL)).toEqual([published]);
      using lease = await later.repository.lease(published.buildId);
      expect(lease.capture.manifest).toMatchObject({ ...MANIFEST, of: published.buildId });
      expect(await later.captures.list()).toEqual(new Set([published.buildId]));
    });

    test('is reached by name, template and build, and by nothing else', async () => {
      await using server = await start();
      const named = await publish(server, DEFAULT);
      const unnamed = await publish(server);
      expect(snapshotId(named, 'team')).toBe('team/data:default');
      expect(snapshotId(unnamed, 'team')).toBe(`${unnamed.templateId}:default`);
      for (const reference of ['data', 'team/data', 'data:default', ' Team/DATA:default ', named.templateId]) {
        expect(found(server, reference)).toBe(named.buildId);
      }
      for (const { buildId, templateId } of [named, unnamed]) {
        expect(found(server, buildId)).toBe(buildId);
        expect(found(server, `${buildId}:default`)).toBe(buildId);
        expect(found(server, `${templateId}:default`)).toBe(buildId);
      }
      for (const reference of ['other/data', 'data:v1', 'nothing', `team/${named.templateId}`, `${named.buildId}:v1`]) {
        expect(found(server, reference)).toBeUndefined();
      }
    });

    test('a name in use gets another build; its tag moves, and what it meant before stays reachable', async () => {
      const told = async (server: Server, ...records: SnapshotRecord[]) =>
        records.map(({ buildId }) => snapshotId(server.repository.get(buildId) as SnapshotRecord, 'team'));
      let first: SnapshotRecord;
      let second: SnapshotRecord;
      let third: SnapshotRecord;
      {
        await using server = await start();
        first = await publish(server, DEFAULT);
        second = await publish(server, V1);
        third = await publish(server, DEFAULT);
        expect(new Set([first, second, third].map(({ templateId }) => templateId)).size).toBe(1);
        expect(found(server, 'data')).toBe(third.buildId);
        expect(found(server, 'data:v1')).toBe(second.buildId);
        expect(found(server, first.buildId)).toBe(first.buildId);
      }
      await using later = await start();
      expect(found(later, 'data')).toBe(third.buildId);
      const names = await told(later, first, second, third);
      expect(names).toEqual([`${first.buildId}:default`, 'team/data:v1', 'team/data:default']);
      expect(names.map((reference) => found(later, reference))).toEqual([first, second, third].map((r) => r.buildId));
      expect(later.repository.templates()).toMatchObject([
        { name: 'data', builds: [third, second, { ...first, tags: [] }].map(({ buildId }) => ({ buildId })) },
      ]);
    });

    test('of many at once with one name each is a build, and exactly one has the name', async () => {
      await using server = await start();
      const records = await Promise.all(Array.from({ length: 8 }, () => publish(server, DEFAULT)));
      expect(new Set(records.map(({ templateId }) => templateId)).size).toBe(1);
      const holders = server.repository.list(ALL).filter(({ tags }) => tags.includes('default'));
      expect(holders.map(({ buildId }) => buildId)).toEqual([found(server, 'data')]);
      await using later = await openAgain(server);
      expect(later.repository.list(ALL)).toHaveLength(8);
      expect(found(later, 'data')).toBe(holders[0]?.buildId);
    });

    async function openAgain(server: Server): Promise<Server> {
      await server[Symbol.asyncDispose]();
      return await start();
    }

    test('lists by the sandbox it was taken of and by name or id', async () => {
      await using server = await start();
      const other = 'i00000000000000000002' as SandboxId;
      const one = await publish(server, DEFAULT);
      const two = await publish(server, V1, { sandboxId: other });
      const three = await publish(server, undefined, { sandboxId: other });
      const ids = (filter: { sandboxId?: string; name?: string }) =>
        server.repository.list({ ...ALL, ...filter }).map(({ buildId }) => buildId);
      expect(ids({})).toEqual([one, two, three].map(({ buildId }) => buildId));
      expect(ids({ sandboxId: other })).toEqual([two.buildId, three.buildId]);
      expect(ids({ sandboxId: other, name: 'data' })).toEqual([two.buildId]);
      expect(ids({ name: three.templateId })).toEqual([three.buildId]);
      expect(ids({ name: one.buildId })).toEqual([one.buildId]);
      expect(ids({ name: 'dat' })).toEqual([]);
    });

    test('deleting takes exactly those, with their files and for good', async () => {
      let kept: SnapshotRecord;
      {
        await using server = await start();
        const first = await publish(server, DEFAULT);
        kept = await publish(server, DEFAULT);
        const unnamed = await publish(server);
        await server.repository.delete([first, unnamed]);
        expect(server.repository.list(ALL)).toEqual([kept]);
        expect(await server.captures.list()).toEqual(new Set([kept.buildId]));
        await expect(server.repository.delete([first])).rejects.toMatchObject({ code: 'not_found' });
        await expect(server.repository.delete([kept, first])).rejects.toMatchObject({ code: 'not_found' });
        await expect(server.repository.lease(first.buildId)).rejects.toMatchObject({ code: 'not_found' });
      }
      await using later = await start();
      expect(later.repository.list(ALL)).toEqual([kept]);
      await later.repository.delete([kept]);
      expect(later.repository.named('data')).toBeUndefined();
      expect((await publish(later, DEFAULT)).templateId).not.toBe(kept.templateId);
    });

    test('of two deletions at once one does it', async () => {
      await using server = await start();
      const record = await publish(server, DEFAULT);
      const outcomes = await Promise.allSettled([
        server.repository.delete([record]),
        server.repository.delete([record]),
      ]);
      expect(outcomes.map(({ status }) => status)).toEqual(['fulfilled', 'rejected']);
    });

    test('what is leased is not removed, before the last lease has ended', async () => {
      await using server = await start();
      const record = await publish(server, DEFAULT);
      const other = await publish(server);
      const leases = [await server.repository.lease(record.buildId), await server.repository.lease(record.buildId)];
      for (const lease of leases) {
        await expect(server.repository.delete([other, record])).rejects.toMatchObject({
          code: 'invalid_argument',
          message: expect.stringContaining('in use'),
        });
        lease[Symbol.dispose]();
        lease[Symbol.dispose]();
      }
      expect(server.repository.list(ALL)).toHaveLength(2);
      await server.repository.delete([other, record]);
      expect(await server.captures.list()).toEqual(new Set());
    });

    test('a capture that is not complete is not published, and nothing of it stays', async () => {
      await using server = await start();
      {
        await using draft = await server.repository.begin();
        await place.write(draft.directory, 'memory.layer', 'half');
        await expect(server.repository.publish(draft, DEFAULT, FACTS)).rejects.toMatchObject({ code: 'internal' });
      }
      expect(server.repository.list(ALL)).toEqual([]);
      expect(await server.captures.list()).toEqual(new Set());
    });

    test('no snapshot can be written of a backend nobody knows', async () => {
      await using server = await start();
      await expect(publish(server, DEFAULT, {}, { ...MANIFEST, backend: 'vbox' })).rejects.toMatchObject({
        code: 'invalid_argument',
        message: expect.stringContaining("'vbox'"),
      });
      expect(await server.captures.list()).toEqual(new Set());
      // One of before there were names for backends is known.
      expect((await publish(server, DEFAULT, {}, { formatVersion: 1 })).backend).toBe('firecracker');
    });

    test('a manifest that was changed afterwards is refused by name; the others are not affected', async () => {
      await using server = await start();
      const damaged = await publish(server, V1);
      const fine = await publish(server, DEFAULT);
      const { directory } = (await server.repository.lease(damaged.buildId)).capture;
      await place.write(directory, 'manifest.json', JSON.stringify({ ...MANIFEST, of: 'somebody else' }));
      await expect(server.repository.lease(damaged.buildId)).rejects.toMatchObject({
        code: 'create_failed',
        message: 'the snapshot is damaged: manifest.json',
      });
      using lease = await server.repository.lease(fine.buildId);
      expect(lease.capture.manifest).toMatchObject({ of: fine.buildId });
    });

    test('a record whose files are not there waits for them; one that cannot be read keeps its files', async () => {
      let absent: SnapshotRecord;
      let kept: SnapshotRecord;
      let newer: SnapshotRecord;
      {
        await using server = await start();
        absent = await publish(server, DEFAULT);
        kept = await publish(server);
        newer = await publish(server);
        await server.captures.remove(absent.buildId as never);
        await server.ledger.putSnapshots([{ ...newer, context: undefined as never }]);
      }
      await using later = await start();
      expect(new Set(later.repository.list(ALL))).toEqual(new Set([absent, kept]));
      expect(later.log.find('error', 'its files are not there')).toHaveLength(1);
      expect(await later.captures.list()).toEqual(new Set([kept.buildId, newer.buildId]));
      await expect(later.repository.lease(absent.buildId)).rejects.toMatchObject({ code: 'internal' });
      await later.repository.delete([absent]);
      await using again = await openAgain(later);
      expect(again.repository.list(ALL)).toEqual([kept]);
      expect(again.log.find('error', 'its files are not there')).toEqual([]);
    });

    test('spawns are counted at once and written together, also at the end', async () => {
      let record: SnapshotRecord;
      {
        await using server = await start();
        record = await publish(server, DEFAULT);
        for (let index = 0; index < 3; index++) server.repository.spawned(record.buildId);
        expect(server.repository.get(record.buildId)).toMatchObject({ spawnCount: 3 });
        server.repository.spawned('019b76da-a800-7000-8000-0000000000ee' as BuildId & InstanceId);
        // A newer build does not lose the count of the one before.
        await publish(server, DEFAULT);
      }
      await using later = await start();
      expect(later.repository.get(record.buildId)).toMatchObject({ spawnCount: 3, tags: [] });
      expect(later.clock.pendingTimers).toBe(0);
    });

    test('a directory that cannot be removed now is removed later', async () => {
      let failing = true;
      await using server = await start({
        ...NO_HOOK,
        before(call) {
          if (failing && call.endsWith('.remove')) throw new Error('busy');
        },
      });
      const record = await publish(server, DEFAULT);
      await server.repository.delete([record]);
      expect(server.repository.list(ALL)).toEqual([]);
      expect(await server.captures.list()).toEqual(new Set([record.buildId]));
      expect(server.log.find('warn', 'tried again')).toHaveLength(1);
      failing = false;
      const next = await publish(server, DEFAULT);
      expect(await server.captures.list()).toEqual(new Set([next.buildId]));
    });

    interface Session {
      readonly live: Set<string>;
      readonly gone: Set<string>;
      /** Perhaps gone. */
      readonly doubted: Set<string>;
      readonly failures: unknown[];
    }

    /** A busy hour; every step may fail. Answers what was acknowledged. */
    async function session(server: Server): Promise<Session> {
      const doubted = new Set<string>();
      const live = new Set<string>();
      const gone = new Set<string>();
      const failures: unknown[] = [];
      const attempt = async (step: () => Promise<void>): Promise<void> => {
        try {
          await step();
        } catch (error) {
          failures.push(error);
        }
      };
      const make = (as?: typeof V1) => attempt(async () => void live.add((await publish(server, as)).buildId));
      const remove = (reference: string) =>
        attempt(async () => {
          const match = server.repository.locate(parseTemplateReference(reference));
          if (match?.build === undefined) throw new Error(`${reference} is not there`);
          const { buildId } = match.build;
          try {
            await server.repository.delete([match.build]);
            gone.add(buildId);
            live.delete(buildId);
          } catch (error) {
            // Nobody can say whether the ledger did it before it stopped answering.
            if (PlatformError.fromUnknown(error).code === 'unavailable') {
              live.delete(buildId);
              doubted.add(buildId);
            }
            throw error;
          }
        });
      await make(DEFAULT);
      await make(V1);
      await make(DEFAULT);
      await make();
      await attempt(async () => {
        for (const { buildId } of server.repository.list(ALL)) {
          using _lease = await server.repository.lease(buildId);
        }
      });
      await remove('data');
      await make(DEFAULT);
      await make(DEFAULT);
      await remove('data:v1');
      return { live, gone, doubted, failures };
    }

    test.each([
      ['before', 'internal'],
      ['after', 'unavailable'],
    ] as const)(
      'a storage call that fails %s its effect (%s), whichever it is, leaves the repository consistent',
      async (when, code) => {
        for (let k = 1, hit = true; hit; k++) {
          await place[Symbol.asyncDispose]();
          place = await createPlace();
          let calls = 0;
          let started = false;
          hit = false;
          const fail = (at: 'before' | 'after') => (call: string) => {
            if (!started || at !== when || call.endsWith('.loadSnapshots') || ++calls !== k) return;
            hit = true;
            throw new PlatformError(code, `call ${k}, ${call}, fails`);
          };
          const server = await start({ before: fail('before'), after: fail('after') });
          started = true;
          const { live, gone, doubted, failures } = await session(server);
          started = false;
          if (hit) expect(failures.length + server.log.find('warn').length, `call ${k}`).toBeGreaterThan(0);
          else expect(failures).toEqual([]);
          await consistent(server, live, gone, `call ${k}`);
          const meant = (of: Server) =>
            ['data', 'data:v1'].map((reference) => found(of, reference)).filter((id) => !doubted.has(id ?? ''));
          const before = meant(server);
          await using later = await openAgain(server);
          await consistent(later, live, gone, `call ${k}, after a restart`);
          for (const id of before) expect(meant(later), `call ${k}: names mean what they meant`).toContain(id);
          expect(later.log.find('error'), `call ${k}`).toEqual([]);
          await expect(later.captures.list(), `call ${k}`).resolves.toEqual(later.repository.captures());
          expect((await session(later)).failures, `call ${k}`).toEqual([]);
        }
      },
    );

    /** What was acknowledged is there and whole, or is not; and each name has at most one holder. */
    async function consistent(server: Server, live: Set<string>, gone: Set<string>, when: string): Promise<void> {
      const records = server.repository.list(ALL);
      const ids = new Set<string>(records.map(({ buildId }) => buildId));
      for (const id of live) expect(ids, when).toContain(id);
      for (const id of gone) expect(ids, when).not.toContain(id);
      for (const record of records) {
        using lease = await server.repository.lease(record.buildId);
        expect(lease.capture.manifest, when).toMatchObject({ of: record.buildId });
        expect(found(server, snapshotId(record, 'team')), when).toBe(record.buildId);
      }
      const held = records.flatMap(({ name: own, tags }) => tags.map((tag) => `${own}:${tag}`));
      const named = held.filter((reference) => !reference.startsWith('undefined'));
      expect(named, when).toEqual([...new Set(named)]);
    }

    test('a server that dies at any storage call leaves what it has acknowledged, and the next start cleans up', async () => {
      for (let k = 1, hit = true; hit; k++) {
        for (const when of ['before', 'after'] as const) {
          await place[Symbol.asyncDispose]();
          place = await createPlace();
          let calls = 0;
          let started = false;
          hit = false;
          const dead = Promise.withResolvers<void>();
          const hang = (at: 'before' | 'after') => (): undefined | Promise<never> => {
            if (!started || at !== when || ++calls < k) return undefined;
            hit = true;
            dead.resolve();
            // Nothing of a dead process happens any more.
            return new Promise<never>(() => undefined);
          };
          const server = await start({ before: hang('before'), after: hang('after') });
          started = true;
          const acknowledged: string[] = [];
          const working = (async () => {
            for (let step = 0; step < 3; step++) acknowledged.push((await publish(server, DEFAULT)).buildId);
            dead.resolve();
          })();
          working.catch(() => undefined);
          await dead.promise;
          started = false;
          await using later = await start();
          const ids = new Set<string>(later.repository.list(ALL).map(({ buildId }) => buildId));
          for (const id of acknowledged) expect(ids).toContain(id);
          await consistent(later, new Set(acknowledged), new Set(), `dead ${when} call ${k}`);
          expect(await later.captures.list()).toEqual(later.repository.captures());
        }
      }
    });
  });
}
