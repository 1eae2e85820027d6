import type { SandboxRecord } from '@agentenv/core';
import type { Ledger } from '@agentenv/storage';

/** One write of a sandbox, or of snapshots, on its way to the ledger. */
export interface LedgerWriteAttempt {
  /** Counts from 1 over all of them. */
  readonly number: number;
  readonly kind: 'put' | 'delete' | 'put-snapshots' | 'delete-snapshots';
  /** Of the sandbox, or of the first snapshot. */
  readonly id: string;
  /** Of the sandbox that is put. */
  readonly record: SandboxRecord | undefined;
}

/** Decides what becomes of a write: calls `apply` or not, fails, or never answers. */
export type LedgerIntercept = (write: LedgerWriteAttempt, apply: () => Promise<void>) => Promise<void>;

/** A ledger whose writes, but those of templates, pass `intercept` first. */
export function interceptLedger(ledger: Ledger, intercept: LedgerIntercept): Ledger {
  let number = 0;
  const attempt = (kind: LedgerWriteAttempt['kind'], id = '', record?: SandboxRecord): LedgerWriteAttempt => ({
    ...{ number: ++number, kind, id, record },
  });
  return {
    loadSandboxes: () => ledger.loadSandboxes(),
    loadTemplates: () => ledger.loadTemplates(),
    loadSnapshots: () => ledger.loadSnapshots(),
    putTemplate: (record) => ledger.putTemplate(record),
    putSandbox: (record) => intercept(attempt('put', record.id, record), () => ledger.putSandbox(record)),
    deleteSandbox: (id) => intercept(attempt('delete', id), () => ledger.deleteSandbox(id)),
    putSnapshots: (records) =>
      intercept(attempt('put-snapshots', records[0]?.buildId), () => ledger.putSnapshots(records)),
    deleteSnapshots: (ids) => intercept(attempt('delete-snapshots', ids[0]), () => ledger.deleteSnapshots(ids)),
    [Symbol.asyncDispose]: () => ledger[Symbol.asyncDispose](),
  };
}
