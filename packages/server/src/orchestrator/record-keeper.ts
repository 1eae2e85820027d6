import { type Clock, callWithin, type Log, type SandboxId, type SandboxRecord } from '@agentenv/core';
import type { Ledger } from '@agentenv/storage';

/** The ledger of sandboxes with deadlines, and removals that do not give up. */
export interface RecordKeeper extends AsyncDisposable {
  /** Resolves when it is on disk. An abort or the deadline rejects at once; the write itself may still happen. */
  write(record: SandboxRecord, signal?: AbortSignal): Promise<void>;
  /**
   * Removes a record whose effects are gone. Never rejects: a stale record harms nobody while this server runs, so a
   * removal the ledger refuses is logged and tried again until it succeeds; after a crash the reconciler does it.
   */
  forget(id: SandboxId): Promise<void>;
  /** Removals that are still to be done. */
  readonly owed: number;
}

const FIRST_RETRY_MS = 1_000;
const LONGEST_RETRY_MS = 60_000;

export function createRecordKeeper(deps: {
  readonly ledger: Pick<Ledger, 'putSandbox' | 'deleteSandbox'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly timeoutMs: number;
}): RecordKeeper {
  const { ledger, clock, log } = deps;
  const bounds = { what: 'the ledger', timeoutMs: deps.timeoutMs, graceMs: 0 };
  const owed = new Map<SandboxId, Disposable | undefined>();
  let disposed = false;

  async function remove(id: SandboxId, attempt: number): Promise<void> {
    owed.set(id, undefined);
    try {
      await callWithin(clock, bounds, () => ledger.deleteSandbox(id));
      owed.delete(id);
    } catch (error) {
      log.warn({ sandboxId: id, attempt, err: error }, 'a record could not be removed from the ledger');
      if (disposed) return;
      const wait = Math.min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2 ** attempt);
      owed.set(
        id,
        clock.timer(wait, () => void remove(id, attempt + 1)),
      );
    }
  }

  return {
    write: (record, signal) =>
      callWithin(clock, signal === undefined ? bounds : { ...bounds, signal }, () => ledger.putSandbox(record)),
    forget: (id) => remove(id, 0),
    get owed() {
      return owed.size;
    },
    async [Symbol.asyncDispose]() {
      disposed = true;
      for (const timer of owed.values()) timer?.[Symbol.dispose]();
      await Promise.all([...owed.keys()].map((id) => remove(id, 0)));
      if (owed.size > 0) log.error({ count: owed.size }, 'records stay in the ledger until the next start');
      owed.clear();
    },
  };
}
