import type { BuildId, SandboxId, SandboxRecord, SnapshotRecord } from '@agentenv/core';

/** A template as the control plane lists it. */
export interface TemplateRecord {
  readonly id: string;
  readonly buildId: string;
  readonly names: readonly string[];
  readonly vcpus: number;
  readonly memoryMB: number;
  readonly diskSizeMB: number;
  readonly envdVersion: string;
  readonly createdAt: number;
  readonly updatedAt: number;
  readonly spawnCount: number;
  readonly lastSpawnedAt: number | undefined;
  /** sha256 of the root file system the build was captured from; another one means a new build. */
  readonly sourceDigest?: string | undefined;
}

/** The rows of one kind. */
export interface LoadedRecords<T> {
  readonly records: readonly T[];
  /** Ids of rows that cannot be read; what they name must not be taken for forgotten. */
  readonly unreadable: readonly string[];
}

/**
 * The durable record of what should exist, written before the effect. One writer: a worker thread that commits in
 * groups; a resolved promise means the write is on disk (WAL, synchronous=FULL). Writes take effect in the order of the
 * calls, and a load sees every write called before it. After disposal every call is refused with `unavailable`.
 */
export interface Ledger extends AsyncDisposable {
  /** Every record, at start-up. Records with unknown keys load; unreadable ones are logged as errors and skipped, their rows stay. */
  loadSandboxes(): Promise<LoadedRecords<SandboxRecord>>;
  /** Inserts or replaces. Disk full: `no_space`; nothing of it is stored then. */
  putSandbox(record: SandboxRecord): Promise<void>;
  /** Absent is fine. */
  deleteSandbox(id: SandboxId): Promise<void>;
  loadTemplates(): Promise<readonly TemplateRecord[]>;
  putTemplate(record: TemplateRecord): Promise<void>;
  loadSnapshots(): Promise<LoadedRecords<SnapshotRecord>>;
  /** Inserts or replaces: all of them or none. */
  putSnapshots(records: readonly SnapshotRecord[]): Promise<void>;
  /** All of them or none; absent ones are fine. */
  deleteSnapshots(ids: readonly BuildId[]): Promise<void>;
}
