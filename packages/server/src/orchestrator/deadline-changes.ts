import {
  applyDeadlinePolicy,
  type Clock,
  type DeadlinePolicy,
  type DeadlineQueue,
  type KeyedQueue,
  type SandboxOperation,
  type SandboxRecord,
} from '@agentenv/core';
import type { EventPublisher } from './event-publisher.ts';
import type { OwnerLog } from './owner-log.ts';
import type { RecordKeeper } from './record-keeper.ts';
import type { SandboxAccess } from './sandbox-access.ts';
import type { SandboxTable } from './sandbox-table.ts';

/**
 * Changes when the timeout of a running sandbox fires, as a step of its own queue: on disk first, then in effect.
 * Resolves with undefined when it has been paused while the request waited.
 */
export type ChangeDeadline = (
  id: string,
  operation: Extract<SandboxOperation, 'connect' | 'timeout' | 'refresh'>,
  policy: DeadlinePolicy,
  seconds: number,
) => Promise<SandboxRecord | undefined>;

export function createDeadlineChanges(deps: {
  readonly table: SandboxTable;
  readonly access: SandboxAccess;
  readonly queue: KeyedQueue;
  readonly deadlines: DeadlineQueue;
  readonly keeper: RecordKeeper;
  readonly clock: Clock;
  readonly owner: Pick<OwnerLog, 'timeoutChanged'>;
  readonly events: EventPublisher;
}): ChangeDeadline {
  return async (id, operation, policy, seconds) => {
    deps.access.allowed(id, operation);
    return await deps.queue.run(id, operation, async (signal) => {
      const entry = deps.access.allowed(id, operation);
      if (entry.record.state !== 'running') return undefined;
      const deadline = applyDeadlinePolicy(policy, entry.record.deadline, deps.clock.now(), seconds);
      if (deadline === entry.record.deadline) return entry.record;
      const changed: SandboxRecord = { ...entry.record, deadline, timeoutSeconds: seconds };
      await deps.keeper.write(changed, signal);
      signal.throwIfAborted();
      deps.table.update(entry, changed);
      deps.deadlines.set(id, deadline);
      entry.failedPauses = 0;
      deps.owner.timeoutChanged(changed, operation);
      deps.events.publish(changed, { type: 'sandbox.lifecycle.updated', updated: 'timeout', deadline });
      return entry.record;
    });
  };
}
