import type { SandboxRecord } from '@agentenv/core';
import type { Ledger } from '@agentenv/storage';

/** One write of a sandbox on its way to the ledger. */
export interface LedgerWriteAttempt {
  /** Counts from 1 over puts and deletes. */
  readonly number: number;
  readonly kind: 'put' | 'delete';
  readonly id: string;
  readonly record: SandboxRecord | undefined;
}

/** Decides what becomes of a write: calls `apply` or not, fails, or never answers. */
export type LedgerIntercept = (write: LedgerWriteAttempt, apply: () => Promise<void>) => Promise<void>;

/** A ledger whose sandbox writes pass `intercept` first. */
export function interceptLedger(ledger: Ledger, intercept: LedgerIntercept): Ledger {
  let number = 0;
  return {
    loadSandboxes: () => ledger.loadSandboxes(),
    loadTemplates: () => ledger.loadTemplates(),
    putTemplate: (record) => ledger.putTemplate(record),
    putSandbox: (record) =>
      intercept({ number: ++number, kind: 'put', id: record.id, record }, () => ledger.putSandbox(record)),
    deleteSandbox: (id) =>
      intercept({ number: ++number, kind: 'delete', id, record: undefined }, () => ledger.deleteSandbox(id)),
    [Symbol.asyncDispose]: () => ledger[Symbol.asyncDispose](),
  };
}
