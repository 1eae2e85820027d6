import { type CaptureId, type Clock, callWithin, createUndoStack, type Log, type UndoStack } from '@agentenv/core';
import type { CaptureStore } from '@agentenv/storage';
import type { RecordKeeper } from './record-keeper.ts';
import type { SandboxEntry } from './sandbox-table.ts';

/** What of a sandbox outlives its generations: the record and the captures. */
export interface DurableState {
  /**
   * Undoes all of it: the record goes first, so that a crash in between leaves captures that no record names, which the
   * next start removes. `captures` may grow until then.
   */
  undoOf(id: SandboxEntry['record']['id'], captures: Set<CaptureId>): UndoStack;
  /** Removes every capture of it but the one its record names. What cannot be removed is tried again at its end. */
  dropStale(entry: SandboxEntry): Promise<void>;
}

export function createDurableState(deps: {
  readonly keeper: RecordKeeper;
  readonly captures: Pick<CaptureStore, 'remove'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly releaseTimeoutMs: number;
}): DurableState {
  const { keeper, clock } = deps;

  async function remove(captures: Set<CaptureId>, ids: readonly CaptureId[]): Promise<void> {
    for (const id of ids) {
      await deps.captures.remove(id);
      captures.delete(id);
    }
  }

  return {
    undoOf(id, captures) {
      const undo = createUndoStack({ clock, stepTimeoutMs: deps.releaseTimeoutMs });
      undo.push('stored state', () => remove(captures, [...captures]));
      undo.push('ledger record', () => keeper.forget(id));
      return undo;
    },
    async dropStale({ record, captures }) {
      const stale = [...captures].filter((id) => id !== record.capture);
      const bounds = { what: 'the removal of a capture', timeoutMs: deps.releaseTimeoutMs, graceMs: 0 };
      try {
        await callWithin(clock, bounds, () => remove(captures, stale));
      } catch (error) {
        deps.log.warn(
          { sandboxId: record.id, err: error },
          'a capture that is not needed any more could not be removed',
        );
      }
    },
  };
}
