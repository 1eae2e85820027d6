import { type Clock, callWithin, type Log, type SandboxRecord } from '@agentenv/core';
import type { Backend } from '@agentenv/runtime';
import type { Ledger } from '@agentenv/storage';

export interface ReconcileDependencies {
  readonly backend: Pick<Backend, 'reconcile'>;
  readonly ledger: Pick<Ledger, 'loadSandboxes' | 'deleteSandbox'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly timeoutMs: number;
  readonly ledgerTimeoutMs: number;
}

/**
 * Cleans up after a former server of this host, before anything else happens: every generation it left is ended, whether
 * the ledger knows it or not, then its records go. In this order, so that a crash in between is repaired by the next start.
 * Returns how many generations were ended. Throws when the ledger cannot be read or the backend cannot clean up.
 */
export async function reconcileAtStart(deps: ReconcileDependencies): Promise<number> {
  const { backend, ledger, clock, log } = deps;
  const ledgerBounds = { what: 'the ledger', timeoutMs: deps.ledgerTimeoutMs, graceMs: 0 };
  const records: readonly SandboxRecord[] = await callWithin(clock, ledgerBounds, () => ledger.loadSandboxes());
  const known = records.map(({ id, instanceId, runtime }) => ({
    sandboxId: id,
    instanceId,
    identity: runtime,
  }));
  const { ended } = await callWithin(
    clock,
    { what: 'cleaning up after a former server', timeoutMs: deps.timeoutMs, graceMs: 0 },
    () => backend.reconcile(known),
  );
  await callWithin(clock, ledgerBounds, () => Promise.all(records.map(({ id }) => ledger.deleteSandbox(id))));
  if (ended > 0 || records.length > 0) {
    log.warn({ records: records.length, ended }, 'ended what a former server of this host left behind');
  }
  return ended;
}
