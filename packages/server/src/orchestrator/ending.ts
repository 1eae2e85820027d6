import {
  type Clock,
  callWithin,
  type DeadlineQueue,
  generationBegan,
  type KeyedQueue,
  type Log,
  PlatformError,
  type SandboxEvent,
  type SandboxRecord,
} from '@agentenv/core';
import type { StageMetrics } from '../observability/metrics.ts';
import type { EventPublisher } from './event-publisher.ts';
import type { EndReason, LifecycleMetrics } from './lifecycle-metrics.ts';
import type { OwnerLog } from './owner-log.ts';
import type { RecordKeeper } from './record-keeper.ts';
import { ENGINE, type SandboxEntry, type SandboxTable } from './sandbox-table.ts';

export interface EndCause {
  readonly event: Extract<SandboxEvent, 'kill' | 'runtime-ended' | 'launch-failed' | 'capture-lost'>;
  readonly reason: EndReason;
  /** One sentence for the log. */
  readonly detail: string;
  /** What callers get whose operations are cut off. */
  readonly error: PlatformError;
}

/**
 * The one way a sandbox ends, whatever the cause. At once and without waiting: it leaves lists and the data plane, its
 * clients' sockets are reset. Then its running step is aborted, the ledger learns that it is being killed, so that no start
 * brings it back, its end is told, and everything it holds is released in reverse order.
 */
export interface Ending extends Disposable {
  /**
   * Ends it, or joins the end that is under way. Resolves when nothing is left; rejects with `internal` when something
   * could not be released, which is tried again by itself and by the next call.
   */
  end(entry: SandboxEntry, cause: EndCause): Promise<void>;
  /** The same from inside the sandbox's own running step, which must not wait for itself. */
  endFromWithin(entry: SandboxEntry, cause: EndCause): Promise<void>;
}

export interface EndingDependencies {
  readonly table: SandboxTable;
  readonly queue: KeyedQueue;
  readonly deadlines: DeadlineQueue;
  readonly clock: Clock;
  readonly log: Log;
  readonly owner: Pick<OwnerLog, 'ends'>;
  readonly metrics: Pick<LifecycleMetrics, 'ended' | 'releaseFailed'>;
  readonly stages: StageMetrics;
  readonly events: EventPublisher;
  readonly keeper: Pick<RecordKeeper, 'write'>;
  readonly retryMs: number;
  /** How long the ledger may take to note a kill, milliseconds; the engine does not wait longer for it. */
  readonly noteMs: number;
}

const OPERATION = 'end';
const LONGEST_RETRY_MS = 60_000;

export function createEnding(deps: EndingDependencies): Ending {
  const { table, queue, log } = deps;
  const retries = new Set<Disposable>();
  let disposed = false;

  /** What happens at once. */
  function vanish(entry: SandboxEntry, cause: EndCause): void {
    const { record: before } = entry;
    if (table.move(entry, cause.event) === undefined) return; // it has vanished already
    const { id, instanceId, templateId, startedAt } = entry.record;
    deps.deadlines.delete(id);
    entry.generation?.sockets.destroy();
    entry.generation?.sampling[Symbol.dispose]();
    deps.metrics.ended(cause.reason);
    const fields = { sandboxId: id, instanceId, templateId, reason: cause.reason, detail: cause.detail };
    log.info({ ...fields, ageMs: deps.clock.now() - startedAt }, 'sandbox ends');
    deps.owner.ends(id, cause);
    // What never ran was never told of, and no start takes it over.
    if (before.state === 'creating') return;
    const ranSince = entry.generation === undefined ? undefined : generationBegan(before);
    entry.farewell = () => {
      deps.events.publish(before, { type: 'sandbox.lifecycle.killed', reason: cause.reason, ranSince });
    };
    entry.noted = note(entry, { ...before, state: 'killing', engineGone: !entry.held.has(ENGINE) });
  }

  /** Once, and not before it is certain that no start can bring the sandbox back. */
  function tell(entry: SandboxEntry): void {
    entry.farewell?.();
    entry.farewell = undefined;
  }

  /** A crash before its engine is stopped must not undo a kill somebody may know of. */
  async function note(entry: SandboxEntry, record: SandboxRecord): Promise<void> {
    const bounds = { what: 'the ledger', timeoutMs: deps.noteMs, graceMs: 0 };
    try {
      await callWithin(deps.clock, bounds, (signal) => deps.keeper.write(record, signal));
      tell(entry);
    } catch (error) {
      // Nothing of it will be left for a start to find; it is told of when that is so.
      log.warn({ sandboxId: record.id, err: error }, 'the ledger could not note that a sandbox is being killed');
    }
  }

  function forgetRetry(entry: SandboxEntry): void {
    if (entry.retry === undefined) return;
    entry.retry.timer[Symbol.dispose]();
    retries.delete(entry.retry.timer);
  }

  function scheduleRetry(entry: SandboxEntry, cause: EndCause): void {
    const attempt = (entry.retry?.attempt ?? 0) + 1;
    const wait = Math.min(LONGEST_RETRY_MS, deps.retryMs * 2 ** (attempt - 1));
    const timer = deps.clock.timer(wait, () => {
      retries.delete(timer);
      // Its failure is logged and scheduled again where it happens.
      end(entry, cause).catch(() => undefined);
    });
    retries.add(timer);
    entry.retry = { timer, attempt };
  }

  async function release(entry: SandboxEntry, cause: EndCause): Promise<void> {
    const { id } = entry.record;
    const stage = deps.stages.start('kill', 'release');
    forgetRetry(entry);
    await entry.noted;
    const failure = (await entry.held.unwind()) ?? (await entry.undo.unwind());
    entry.ending = undefined;
    if (failure === undefined) {
      stage.end('ok');
      entry.retry = undefined;
      tell(entry);
      table.move(entry, 'released');
      return;
    }
    stage.end('error');
    table.move(entry, 'release-failed');
    deps.metrics.releaseFailed(failure.step);
    log.error({ sandboxId: id, step: failure.step, err: failure.error }, 'sandbox could not be released');
    if (!disposed) scheduleRetry(entry, cause);
    throw new PlatformError('internal', `sandbox '${id}' could not be ended: ${failure.error.message}`, {
      cause: failure.error,
    });
  }

  function begin(entry: SandboxEntry, start: () => Promise<void>): Promise<void> {
    const ending = start();
    entry.ending = ending;
    // Whoever wants the outcome awaits it; nobody has to.
    ending.catch(() => undefined);
    return ending;
  }

  function end(entry: SandboxEntry, cause: EndCause): Promise<void> {
    if (entry.ending !== undefined) return entry.ending;
    if (table.get(entry.record.id) !== entry) return Promise.resolve();
    vanish(entry, cause);
    return begin(entry, () => queue.preempt(entry.record.id, OPERATION, cause.error, () => release(entry, cause)));
  }

  return {
    end,
    endFromWithin(entry, cause) {
      if (entry.ending !== undefined) return entry.ending;
      vanish(entry, cause);
      return begin(entry, () => release(entry, cause));
    },
    [Symbol.dispose]() {
      disposed = true;
      for (const timer of retries) timer[Symbol.dispose]();
      retries.clear();
    },
  };
}
