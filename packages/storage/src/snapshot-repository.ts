import {
  BACKEND_NAMES,
  type BuildId,
  type CaptureId,
  type Clock,
  callWithin,
  createSnapshotIndex,
  createTemplateId,
  type Log,
  PlatformError,
  type Rng,
  type SnapshotIndex,
  type SnapshotName,
  type SnapshotRecord,
  type UuidSource,
} from '@agentenv/core';
import type { CaptureStore, StoredCapture } from './capture-store.ts';
import type { Ledger } from './ledger.ts';

/** What is known of a snapshot beside its files. */
export type SnapshotFacts = Pick<SnapshotRecord, 'sandboxId' | 'origin' | 'resources' | 'envdVersion' | 'context'>;

/** A capture that is going to be a snapshot. Disposing removes what was not published. */
export interface SnapshotDraft extends AsyncDisposable {
  readonly buildId: BuildId;
  /** Empty; a backend captures into it. */
  readonly directory: string;
}

/** A snapshot somebody starts sandboxes from: until it is disposed nothing of it is removed. */
export interface SnapshotLease extends Disposable {
  readonly capture: StoredCapture;
}

/**
 * The snapshots of this host. A snapshot is a complete capture directory that a record of the ledger names: the record is
 * written last and removed first, so a crash leaves directories without a record, which the next start removes. Files that
 * snapshots share have a name in each of their directories, so every directory may go at any time.
 */
export interface SnapshotRepository
  extends AsyncDisposable,
    Pick<SnapshotIndex, 'get' | 'list' | 'locate' | 'named' | 'templates'> {
  readonly namespace: string;
  /** Makes room for a capture. `no_space`, `internal`, `deadline_exceeded`. */
  begin(): Promise<SnapshotDraft>;
  /**
   * Makes a complete capture a snapshot. A name that is in use gets it as its newest build. `invalid_argument` for the
   * capture of a backend nobody knows; failures of the ledger leave everything as it was.
   */
  publish(draft: SnapshotDraft, name: SnapshotName | undefined, facts: SnapshotFacts): Promise<SnapshotRecord>;
  /** Unknown: `not_found`; files that are not those of its record: `create_failed`. */
  lease(buildId: BuildId): Promise<SnapshotLease>;
  /** All of them or none. One that is leased: `invalid_argument`; one that is gone: `not_found`. */
  delete(builds: readonly SnapshotRecord[]): Promise<void>;
  /** Counts a sandbox started from it; written to the ledger soon, never waited for. */
  spawned(buildId: BuildId): void;
  /** Names of the capture directories that records name. */
  captures(): ReadonlySet<string>;
}

export interface SnapshotRepositoryOptions {
  readonly ledger: Pick<Ledger, 'loadSnapshots' | 'putSnapshots' | 'deleteSnapshots'>;
  readonly captures: CaptureStore;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly ids: Pick<UuidSource, 'buildId'>;
  readonly log: Log;
  /** Namespace of the names (config `team.slug`). */
  readonly namespace: string;
  readonly config: SnapshotRepositoryConfig;
}

/** Milliseconds. */
export interface SnapshotRepositoryConfig {
  /** Longest single answer of the ledger. */
  readonly ledgerTimeoutMs: number;
  /** Longest making, reading or removal of one directory. */
  readonly diskTimeoutMs: number;
  /** How long spawn counts are gathered before they are written. */
  readonly writeBehindMs: number;
}

export const DEFAULT_SNAPSHOT_REPOSITORY_CONFIG: SnapshotRepositoryConfig = {
  ledgerTimeoutMs: 10_000,
  diskTimeoutMs: 10_000,
  writeBehindMs: 1_000,
};

/** The directory of a snapshot has the name of its build. */
function captureOf(buildId: BuildId): CaptureId {
  return buildId as string as CaptureId;
}

/** A write that failed in this way may have happened, or may still happen. */
function isInDoubt(error: unknown): boolean {
  const { code } = PlatformError.fromUnknown(error);
  return code === 'deadline_exceeded' || code === 'unavailable';
}

/** Reads what is known. Rejects when ledger or captures cannot be read. */
export async function openSnapshotRepository(options: SnapshotRepositoryOptions): Promise<SnapshotRepository> {
  const { ledger, captures, clock, log, namespace, config } = options;
  const index = createSnapshotIndex({ namespace });
  const leases = new Map<string, number>();
  const leaving = new Set<string>();
  const published = new WeakSet<SnapshotDraft>();
  /** Directories without a record that could not be removed yet. */
  const litter = new Set<CaptureId>();
  const unsaved = new Set<BuildId>();
  let saving: Disposable | undefined;
  let last: Promise<unknown> = Promise.resolve();

  const inLedger = <T>(call: () => Promise<T>): Promise<T> =>
    callWithin(clock, { what: 'the ledger', timeoutMs: config.ledgerTimeoutMs, graceMs: 0 }, call);
  const onDisk = <T>(call: () => Promise<T>): Promise<T> =>
    callWithin(clock, { what: 'the data disk', timeoutMs: config.diskTimeoutMs, graceMs: 0 }, call);

  /** Changes of records happen one after the other: each is made from what the one before left. */
  function serially<T>(work: () => Promise<T>): Promise<T> {
    const result = last.then(work);
    last = result.catch(() => undefined);
    return result;
  }

  async function removeDirectory(id: CaptureId): Promise<boolean> {
    litter.add(id);
    try {
      await onDisk(() => captures.remove(id));
      return litter.delete(id);
    } catch (error) {
      log.warn({ capture: id, err: error }, 'the files of a snapshot could not be removed; it is tried again');
      return false;
    }
  }

  async function removeLitter(): Promise<void> {
    for (const id of litter) if (!(await removeDirectory(id))) return;
  }

  /** Makes sure that a write in doubt has not happened; false: nobody knows until the next start. */
  async function takeBack(written: SnapshotRecord, others: readonly SnapshotRecord[]): Promise<boolean> {
    try {
      await inLedger(() => ledger.deleteSnapshots([written.buildId]));
      const former = others.flatMap(({ buildId }) => index.get(buildId) ?? []);
      if (former.length > 0) await inLedger(() => ledger.putSnapshots(former));
      return true;
    } catch (error) {
      log.error({ buildId: written.buildId, err: error }, 'a snapshot that failed may be there after the next start');
      return false;
    }
  }

  async function commit(record: SnapshotRecord, name: SnapshotName | undefined): Promise<SnapshotRecord> {
    const [claimed, ...others] = index.claim(record, name);
    try {
      await inLedger(() => ledger.putSnapshots([claimed, ...others]));
    } catch (error) {
      const id = captureOf(record.buildId);
      if (!isInDoubt(error) || (await takeBack(claimed, others))) await removeDirectory(id);
      throw error;
    }
    index.put(claimed);
    for (const { buildId, tags } of others) {
      // Spawns may have been counted meanwhile.
      const now = index.get(buildId);
      if (now !== undefined) index.put({ ...now, tags });
    }
    return claimed;
  }

  async function save(): Promise<void> {
    const records = [...unsaved].flatMap((buildId) => index.get(buildId) ?? []);
    unsaved.clear();
    if (records.length === 0) return;
    try {
      await inLedger(() => ledger.putSnapshots(records));
    } catch (error) {
      // A count that is lost harms nobody; the next spawn writes it again.
      log.warn({ snapshots: records.length, err: error }, 'spawn counts of snapshots could not be written');
    }
  }

  const absent = (): PlatformError => new PlatformError('not_found', 'the snapshot does not exist any more');

  function requireRemovable(builds: readonly SnapshotRecord[]): void {
    if (builds.some(({ buildId }) => leaving.has(buildId) || index.get(buildId) === undefined)) throw absent();
    if (!builds.some(({ buildId }) => leases.has(buildId))) return;
    throw new PlatformError('invalid_argument', 'the snapshot is in use: a sandbox is being started from it');
  }

  const loaded = await inLedger(() => ledger.loadSnapshots());
  const stored = await onDisk(() => captures.list());
  for (const record of loaded.records.toSorted((left, right) => left.createdAt - right.createdAt)) {
    index.put(record);
    // Perhaps the disk they lie on is not mounted: the record waits for it, and for whoever deletes the snapshot.
    if (!stored.has(record.buildId)) {
      log.error({ buildId: record.buildId }, 'a snapshot cannot be used: its files are not there');
    }
  }

  return {
    namespace,
    get: index.get,
    list: index.list,
    locate: index.locate,
    named: index.named,
    templates: index.templates,
    async begin() {
      await removeLitter();
      const buildId = options.ids.buildId();
      const id = captureOf(buildId);
      let directory: string;
      try {
        directory = await onDisk(() => captures.allocate(id));
      } catch (error) {
        await removeDirectory(id);
        throw error;
      }
      const draft: SnapshotDraft = {
        buildId,
        directory,
        async [Symbol.asyncDispose]() {
          if (!published.has(draft)) await removeDirectory(id);
        },
      };
      return draft;
    },
    async publish(draft, name, facts) {
      const { buildId } = draft;
      const { manifest, digest } = await onDisk(() => captures.open(captureOf(buildId)));
      if (!BACKEND_NAMES.some((known) => known === manifest.backend)) {
        throw new PlatformError('invalid_argument', `no snapshot can be of the backend '${manifest.backend}'`);
      }
      // From here on the directory is the commit's: whether it may be removed depends on what the ledger says.
      published.add(draft);
      return await serially(() => {
        const record: SnapshotRecord = {
          ...facts,
          buildId,
          templateId: createTemplateId(options.rng),
          name: undefined,
          tags: [],
          createdAt: clock.now(),
          backend: manifest.backend,
          manifestDigest: digest,
          spawnCount: 0,
          lastSpawnedAt: undefined,
        };
        return commit(record, name);
      });
    },
    async lease(buildId) {
      const record = leaving.has(buildId) ? undefined : index.get(buildId);
      if (record === undefined) throw absent();
      leases.set(buildId, (leases.get(buildId) ?? 0) + 1);
      let held = true;
      const release = (): void => {
        if (!held) return;
        held = false;
        const left = (leases.get(buildId) ?? 0) - 1;
        if (left > 0) leases.set(buildId, left);
        else leases.delete(buildId);
      };
      try {
        const capture = await onDisk(() => captures.open(captureOf(buildId)));
        if (capture.digest !== record.manifestDigest) {
          throw new PlatformError('create_failed', 'the snapshot is damaged: manifest.json', {
            details: { directory: capture.directory, expected: record.manifestDigest, found: capture.digest },
          });
        }
        return { capture, [Symbol.dispose]: release };
      } catch (error) {
        release();
        throw error;
      }
    },
    async delete(builds) {
      requireRemovable(builds);
      const ids = builds.map(({ buildId }) => buildId);
      for (const id of ids) leaving.add(id);
      try {
        await serially(async () => {
          await inLedger(() => ledger.deleteSnapshots(ids));
          for (const id of ids) index.delete(id);
        });
      } finally {
        for (const id of ids) leaving.delete(id);
      }
      for (const id of ids) await removeDirectory(captureOf(id));
    },
    spawned(buildId) {
      const record = index.get(buildId);
      if (record === undefined) return;
      index.put({ ...record, spawnCount: record.spawnCount + 1, lastSpawnedAt: clock.now() });
      unsaved.add(buildId);
      saving ??= clock.timer(config.writeBehindMs, () => {
        saving = undefined;
        void serially(save);
      });
    },
    captures: () =>
      new Set([
        ...index.list({ sandboxId: undefined, name: undefined }).map(({ buildId }) => buildId),
        ...loaded.unreadable,
      ]),
    async [Symbol.asyncDispose]() {
      saving?.[Symbol.dispose]();
      saving = undefined;
      await serially(save);
    },
  };
}
