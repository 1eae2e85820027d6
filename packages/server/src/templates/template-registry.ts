import {
  type Clock,
  callWithin,
  createTemplateId,
  DEFAULT_TAG,
  type Log,
  PlatformError,
  parseTemplateReference,
  type Resources,
  type Rng,
  shorten,
  TEMPLATE_NAME_MAX,
  type TemplateReference,
  type UuidSource,
} from '@agentenv/core';
import type { Backend, RootFilesystem, StoredSnapshot } from '@agentenv/runtime';
import type { Ledger, TemplateRecord } from '@agentenv/storage';
import type { StageMetrics } from '../observability/metrics.ts';

/** A template this host can make: where it comes from and how large its sandboxes are. */
export interface TemplateSource {
  /** Its alias, e.g. `base`. */
  readonly name: string;
  readonly rootfs: RootFilesystem;
  readonly resources: Resources;
}

/** A template from which a sandbox can be started now. */
export interface ReadyTemplate {
  readonly record: TemplateRecord;
  readonly snapshot: StoredSnapshot;
  /** Name by which it is shown, without namespace and tag. */
  readonly alias: string;
}

/** The templates of this host. Names are resolved as a client wrote them (contract e2b.md section 3). */
export interface TemplateRegistry extends AsyncDisposable {
  /** Loads what is known and begins to prepare every source; resolves when the known ones can be listed. */
  start(): Promise<void>;
  /** Templates that have been built at least once. */
  list(): readonly TemplateRecord[];
  /** Whether it means a template of this host, built or not, whatever its tag. */
  owns(reference: TemplateReference): boolean;
  /** By id or name. Unknown: undefined; malformed: `invalid_argument`. */
  find(reference: string): TemplateRecord | undefined;
  /**
   * Waits for its preparation, which all callers share. Malformed: `invalid_argument` · unknown name or tag: `not_found` ·
   * not ready in time or not preparable: `unavailable`.
   */
  resolve(reference: string): Promise<ReadyTemplate>;
  /** Counts a sandbox started from it; written to the ledger soon, never waited for. */
  spawned(id: string): void;
}

export interface TemplateRegistryDependencies {
  readonly backend: Pick<Backend, 'prepareTemplate' | 'warm'>;
  readonly ledger: Pick<Ledger, 'loadTemplates' | 'putTemplate'>;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly ids: UuidSource;
  readonly log: Log;
  readonly stages: StageMetrics;
  readonly sources: readonly TemplateSource[];
  /** Namespace of this host's templates (config `team.slug`). */
  readonly namespace: string;
  readonly envdVersion: string;
  readonly config: TemplateRegistryConfig;
}

export interface TemplateRegistryConfig {
  /** Longest preparation of one template, milliseconds; an emulated boot takes its time. */
  readonly prepareTimeoutMs: number;
  /** How long a create waits for a preparation, milliseconds. */
  readonly waitMs: number;
  /** How long a failed preparation is answered from memory before it is tried again, milliseconds. */
  readonly retryAfterMs: number;
  /** How long spawn counts are gathered before they are written, milliseconds. */
  readonly writeBehindMs: number;
  readonly ledgerTimeoutMs: number;
}

export const DEFAULT_TEMPLATE_REGISTRY_CONFIG: TemplateRegistryConfig = {
  prepareTimeoutMs: 300_000,
  waitMs: 50_000,
  retryAfterMs: 5_000,
  writeBehindMs: 1_000,
  ledgerTimeoutMs: 10_000,
};

interface Entry {
  readonly source: TemplateSource;
  record: TemplateRecord | undefined;
  preparing: Promise<ReadyTemplate> | undefined;
  failedAt: number | undefined;
}

export function createTemplateRegistry(deps: TemplateRegistryDependencies): TemplateRegistry {
  const { backend, ledger, clock, log, config } = deps;
  const entries: readonly Entry[] = deps.sources.map((source) => ({
    source,
    record: undefined,
    preparing: undefined,
    failedAt: undefined,
  }));
  const stop = new AbortController();
  const unsaved = new Set<Entry>();
  let saving: Disposable | undefined;

  function locate({ namespace, alias }: TemplateReference): Entry | undefined {
    return entries.find(
      ({ source, record }) =>
        (source.name === alias && (namespace === undefined || namespace === deps.namespace)) ||
        (namespace === undefined && record?.id === alias),
    );
  }

  const withinLedger = <T>(call: () => Promise<T>): Promise<T> =>
    callWithin(clock, { what: 'the ledger', timeoutMs: config.ledgerTimeoutMs, graceMs: 0 }, call);

  /** The record of a finished build: the same template, another build when its source has changed. */
  function built({ source, record }: Entry): TemplateRecord {
    const now = clock.now();
    const { vcpus, memoryMB, diskSizeMB } = source.resources;
    const same =
      record?.sourceDigest === source.rootfs.digest &&
      record.vcpus === vcpus &&
      record.memoryMB === memoryMB &&
      record.diskSizeMB === diskSizeMB;
    return {
      id: record?.id ?? createTemplateId(deps.rng),
      buildId: same ? record.buildId : deps.ids.buildId(),
      names: [source.name],
      vcpus,
      memoryMB,
      diskSizeMB,
      envdVersion: deps.envdVersion,
      createdAt: record?.createdAt ?? now,
      updatedAt: same ? record.updatedAt : now,
      spawnCount: record?.spawnCount ?? 0,
      lastSpawnedAt: record?.lastSpawnedAt,
      sourceDigest: source.rootfs.digest,
    };
  }

  async function prepare(entry: Entry): Promise<ReadyTemplate> {
    const { source } = entry;
    const started = clock.monotonic();
    const stage = deps.stages.start('prepare_template', 'capture');
    try {
      const snapshot = await callWithin(
        clock,
        {
          what: `preparing template '${source.name}'`,
          timeoutMs: config.prepareTimeoutMs,
          graceMs: 2_000,
          signal: stop.signal,
        },
        (signal) => backend.prepareTemplate(source.rootfs, source.resources, signal),
      );
      const record = built(entry);
      await withinLedger(() => ledger.putTemplate(record));
      entry.record = record;
      backend.warm(snapshot);
      stage.end('ok');
      const milliseconds = Math.round(clock.monotonic() - started);
      log.info({ template: source.name, templateId: record.id, milliseconds }, 'template is ready');
      return { record, snapshot, alias: source.name };
    } catch (error) {
      stage.end(stop.signal.aborted ? 'canceled' : 'error');
      if (!stop.signal.aborted) log.error({ template: source.name, err: error }, 'template could not be prepared');
      throw error;
    }
  }

  function ensurePrepared(entry: Entry): Promise<ReadyTemplate> {
    const failedLongAgo = entry.failedAt !== undefined && clock.monotonic() - entry.failedAt >= config.retryAfterMs;
    if (entry.preparing === undefined || failedLongAgo) {
      entry.failedAt = undefined;
      entry.preparing = prepare(entry);
      entry.preparing.catch(() => {
        entry.failedAt = clock.monotonic();
      });
    }
    return entry.preparing;
  }

  function save(): void {
    saving = undefined;
    for (const entry of unsaved) {
      const { record } = entry;
      unsaved.delete(entry);
      if (record === undefined) continue;
      withinLedger(() => ledger.putTemplate(record)).catch((error: unknown) => {
        // A count that is lost harms nobody; the next spawn writes it again.
        log.warn({ templateId: record.id, err: error }, 'spawn count of a template could not be written');
      });
    }
  }

  return {
    async start() {
      const known = await withinLedger(() => ledger.loadTemplates());
      for (const entry of entries) {
        entry.record = known.find((record) => record.names.includes(entry.source.name));
        void ensurePrepared(entry);
      }
    },
    owns: (reference) => locate(reference) !== undefined,
    list: () => entries.flatMap(({ record }) => record ?? []),
    find(reference) {
      const parsed = parseTemplateReference(reference);
      if (parsed.tag !== undefined && parsed.tag !== DEFAULT_TAG) return undefined;
      return locate(parsed)?.record;
    },
    async resolve(reference) {
      const parsed = parseTemplateReference(reference);
      const entry = locate(parsed);
      if (entry === undefined) {
        throw new PlatformError('not_found', `template '${shorten(reference, TEMPLATE_NAME_MAX)}' not found`);
      }
      if (parsed.tag !== undefined && parsed.tag !== DEFAULT_TAG) {
        throw new PlatformError('not_found', `tag '${parsed.tag}' does not exist for template '${entry.source.name}'`);
      }
      try {
        const what = `the preparation of template '${entry.source.name}'`;
        const { snapshot, alias } = await callWithin(clock, { what, timeoutMs: config.waitMs, graceMs: 0 }, () =>
          ensurePrepared(entry),
        );
        // The record may have moved on since the preparation (spawn counts).
        if (entry.record === undefined) throw new PlatformError('internal', 'a prepared template has no record');
        return { record: entry.record, snapshot, alias };
      } catch (error) {
        const cause = PlatformError.fromUnknown(error, 'the preparation failed');
        throw new PlatformError('unavailable', `template '${entry.source.name}' is not ready: ${cause.message}`, {
          cause,
          retryAfterSeconds: Math.ceil(config.retryAfterMs / 1000),
        });
      }
    },
    spawned(id) {
      const entry = entries.find(({ record }) => record?.id === id);
      if (entry?.record === undefined) return;
      entry.record = { ...entry.record, spawnCount: entry.record.spawnCount + 1, lastSpawnedAt: clock.now() };
      unsaved.add(entry);
      saving ??= clock.timer(config.writeBehindMs, save);
    },
    async [Symbol.asyncDispose]() {
      stop.abort(new PlatformError('unavailable', 'the server is shutting down'));
      saving?.[Symbol.dispose]();
      saving = undefined;
      const records = [...unsaved].flatMap(({ record }) => record ?? []);
      unsaved.clear();
      const pending = entries.map(({ preparing }) => preparing);
      // Failures of a preparation were logged where they happened.
      await Promise.allSettled([
        ...pending,
        ...records.map((record) => withinLedger(() => ledger.putTemplate(record))),
      ]);
    },
  };
}
