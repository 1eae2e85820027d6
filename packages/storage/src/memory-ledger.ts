import { type Log, PlatformError, type SandboxRecord } from '@agentenv/core';
import type { Ledger, LoadedRecords, TemplateRecord } from './ledger.ts';
import { decodeSandboxRecord, decodeSnapshotRecord, decodeTemplateRecord, encodeRecord } from './record-codec.ts';

/** What a memory ledger writes to; outlives the ledger, so a test can open it again after a crash. */
export interface MemoryDisk {
  readonly sandboxes: Map<string, string>;
  readonly templates: Map<string, string>;
  readonly snapshots: Map<string, string>;
  /** Names of the directories of captures. */
  readonly captures: Set<string>;
}

export function createMemoryDisk(): MemoryDisk {
  return { sandboxes: new Map(), templates: new Map(), snapshots: new Map(), captures: new Set() };
}

/** A ledger for tests: same records, same order, same errors as the real one, on a disk that is a map. */
export function openMemoryLedger(options: { readonly disk: MemoryDisk; readonly log: Log }): Ledger {
  const { disk, log } = options;
  let closed = false;

  function refuseClosed(): void {
    if (closed) throw new PlatformError('unavailable', 'the ledger is closed');
  }

  function load<T>(table: ReadonlyMap<string, string>, decode: (json: string) => T): LoadedRecords<T> {
    refuseClosed();
    const unreadable: string[] = [];
    const records = [...table.entries()]
      .sort(([left], [right]) => (left < right ? -1 : 1))
      .flatMap(([id, json]) => {
        try {
          return [decode(json)];
        } catch (error) {
          log.error({ id, err: error }, 'a record of the ledger cannot be read and is skipped');
          unreadable.push(id);
          return [];
        }
      });
    return { records, unreadable };
  }

  return {
    loadSandboxes: async () => load(disk.sandboxes, decodeSandboxRecord),
    loadTemplates: async () => load(disk.templates, decodeTemplateRecord).records,
    async putSandbox(record: SandboxRecord) {
      refuseClosed();
      disk.sandboxes.set(record.id, encodeRecord(record));
    },
    async deleteSandbox(id) {
      refuseClosed();
      disk.sandboxes.delete(id);
    },
    async putTemplate(record: TemplateRecord) {
      refuseClosed();
      disk.templates.set(record.id, encodeRecord(record));
    },
    loadSnapshots: async () => load(disk.snapshots, decodeSnapshotRecord),
    async putSnapshots(records) {
      refuseClosed();
      for (const record of records) disk.snapshots.set(record.buildId, encodeRecord(record));
    },
    async deleteSnapshots(ids) {
      refuseClosed();
      for (const id of ids) disk.snapshots.delete(id);
    },
    async [Symbol.asyncDispose]() {
      closed = true;
    },
  };
}
