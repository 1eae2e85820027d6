import type { SandboxId, SandboxRecord } from '@agentenv/core';

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
}

/**
 * The durable record of what should exist, written before the effect. One writer: a worker thread that commits in
 * groups; a resolved promise means the write is on disk (WAL, synchronous=FULL).
 */
export interface Ledger extends AsyncDisposable {
  /** Every record, at start-up. Records with unknown keys load; unreadable ones are reported by `onUnreadable` and skipped. */
  loadSandboxes(): Promise<readonly SandboxRecord[]>;
  putSandbox(record: SandboxRecord): Promise<void>;
  deleteSandbox(id: SandboxId): Promise<void>;
  loadTemplates(): Promise<readonly TemplateRecord[]>;
  putTemplate(record: TemplateRecord): Promise<void>;
}
