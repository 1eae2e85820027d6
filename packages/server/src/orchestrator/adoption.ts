import {
  type Admission,
  type CaptureId,
  type Clock,
  createUndoStack,
  type DeadlineQueue,
  type SandboxRecord,
} from '@agentenv/core';
import type { RunningSandbox } from '@agentenv/runtime';
import type { Attachment } from './attachment.ts';
import type { DurableState } from './durable-state.ts';
import type { OwnerLog } from './owner-log.ts';
import type { Reconciled } from './reconcile.ts';
import { ENGINE, type SandboxTable } from './sandbox-table.ts';

export interface AdoptionDependencies {
  readonly table: SandboxTable;
  readonly durable: DurableState;
  readonly attachment: Attachment;
  readonly admission: Pick<Admission, 'occupy'>;
  readonly deadlines: DeadlineQueue;
  readonly clock: Clock;
  readonly owner: Pick<OwnerLog, 'found' | 'adopted'>;
  readonly releaseTimeoutMs: number;
}

/**
 * Makes this server responsible for what a former one left: paused sandboxes, and running ones with their place on the
 * host, guest API and deadline. A deadline that has passed meanwhile fires at once.
 */
export function takeOver(deps: AdoptionDependencies, { paused, running }: Reconciled): void {
  const { attachment, clock, deadlines, durable, owner, releaseTimeoutMs, table } = deps;

  function add(record: SandboxRecord) {
    const captures = new Set<CaptureId>(record.capture === undefined ? [] : [record.capture]);
    const held = createUndoStack({ clock, stepTimeoutMs: releaseTimeoutMs });
    return table.add(record, { held, captures, undo: durable.undoOf(record.id, captures) });
  }

  function adopt(record: SandboxRecord, generation: RunningSandbox): void {
    const entry = add(record);
    const reservation = deps.admission.occupy(record.resources);
    entry.held.push('place on the host', () => reservation.release());
    entry.held.push(ENGINE, () => generation.stop());
    owner.adopted(record.id);
    attachment.publish(entry, generation, attachment.startEnvd(entry, generation));
    attachment.watch(entry, generation);
    if (record.deadline !== undefined) deadlines.set(record.id, record.deadline);
  }

  for (const record of paused) {
    add(record);
    owner.found(record.id);
  }
  for (const { record, generation } of running) adopt(record, generation);
}
