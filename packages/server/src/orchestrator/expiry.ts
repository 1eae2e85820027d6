import {
  type CaptureKind,
  type Clock,
  createDeadlineQueue,
  type DeadlineQueue,
  type KeyedQueue,
  type Log,
  type TimeoutAction,
} from '@agentenv/core';
import type { OrchestratorConfig } from './config.ts';
import { createDueWork } from './due-work.ts';
import type { EndCause } from './ending.ts';
import type { LifecycleMetrics } from './lifecycle-metrics.ts';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';

export interface ExpiryDependencies {
  /** Looked at when a time has come: it exists only after the queue of deadlines. */
  readonly table: () => Pick<SandboxTable, 'get'>;
  readonly queue: Pick<KeyedQueue, 'current'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Pick<LifecycleMetrics, 'autoPauseGivenUp'>;
  readonly config: Pick<OrchestratorConfig, 'autoEvictIntervalMs' | 'pauseFailure' | 'expiryConcurrency'>;
  readonly pause: (id: string, keeps: CaptureKind) => Promise<unknown>;
  /** Never rejects. */
  readonly end: (entry: SandboxEntry, cause: Pick<EndCause, 'reason' | 'detail'>) => Promise<void>;
}

/** How soon an expiry that met a busy sandbox looks again, milliseconds. */
const RECHECK_MS = 50;
/** A pause at the timeout that fails is tried again this often … */
const PAUSE_RETRIES = 3;
/** … and this far apart, milliseconds: within a minute in all. */
const PAUSE_RETRY_MS = 20_000;

/**
 * The deadlines of running sandboxes, and what happens when one passes. However many have passed at once, as after an
 * outage, a few are paused and a few ended at a time, the earliest first; until its turn a sandbox runs on, and whatever
 * its owner asks for meanwhile is done at once and counts.
 */
export function createExpiry(deps: ExpiryDependencies): DeadlineQueue {
  const { clock, config, log } = deps;
  const deadlines = createDeadlineQueue({ clock, maxWaitMs: config.autoEvictIntervalMs }, expire);
  // Apart, so that a guest that is long in its capture keeps none alive that has to end.
  const pauses = createDueWork(config.expiryConcurrency, (id) => act(id, 'pause'));
  const ends = createDueWork(config.expiryConcurrency, (id) => act(id, 'kill'));

  /** The entry, when its time has really come and nothing is under way that may change that. */
  function due(id: string): SandboxEntry | undefined {
    const entry = deps.table().get(id);
    if (entry === undefined || entry.record.state === 'killing' || entry.record.state === 'paused') return undefined;
    if (entry.record.state !== 'running' || deps.queue.current(id) !== undefined) {
      // A step that may change the deadline is under way: decide when it is done, never on a stale reading.
      deadlines.set(id, clock.now() + RECHECK_MS);
      return undefined;
    }
    if (entry.record.deadline !== undefined && entry.record.deadline > clock.now()) {
      deadlines.set(id, entry.record.deadline);
      return undefined;
    }
    return entry;
  }

  async function pause(entry: SandboxEntry): Promise<void> {
    const { id } = entry.record;
    try {
      await deps.pause(id, entry.record.timeoutKeeps);
    } catch {
      // Logged and counted where it failed.
      if (entry.record.state !== 'running' || deps.table().get(id) !== entry) return;
      entry.failedPauses++;
      if (entry.failedPauses <= PAUSE_RETRIES) deadlines.set(id, clock.now() + PAUSE_RETRY_MS);
      else await giveUp(entry);
    }
  }

  async function pauseWithoutMemory(entry: SandboxEntry): Promise<void> {
    const { id } = entry.record;
    try {
      await deps.pause(id, 'disk');
    } catch {
      // Logged and counted where it failed. It runs on until somebody sets a timeout.
      if (entry.record.state === 'running' && deps.table().get(id) === entry) deadlines.delete(id);
    }
  }

  async function giveUp(entry: SandboxEntry): Promise<void> {
    const { id, timeoutKeeps } = entry.record;
    const detail = `its timeout could not pause it in ${entry.failedPauses} attempts`;
    entry.failedPauses = 0;
    deadlines.delete(id);
    deps.metrics.autoPauseGivenUp();
    log.error({ sandboxId: id, policy: config.pauseFailure }, detail);
    if (config.pauseFailure === 'kill') await deps.end(entry, { reason: 'pause-failed', detail });
    // Where it keeps no memory anyway, that was tried already.
    if (config.pauseFailure === 'filesystem' && timeoutKeeps === 'full') await pauseWithoutMemory(entry);
  }

  function expire(id: string): void {
    const entry = due(id);
    if (entry === undefined) return;
    const work = entry.record.onTimeout === 'pause' ? pauses : ends;
    work.add(id, entry.record.deadline ?? clock.now());
  }

  /** When its turn has come: what its owner did while it waited may have changed everything. */
  async function act(id: string, action: TimeoutAction): Promise<void> {
    const entry = due(id);
    if (entry === undefined) return;
    if (entry.record.onTimeout !== action) expire(id);
    else if (action === 'pause') await pause(entry);
    else await deps.end(entry, { reason: 'expired', detail: `its timeout of ${entry.record.timeoutSeconds} s passed` });
  }

  return {
    set: deadlines.set,
    delete: deadlines.delete,
    get size() {
      return deadlines.size;
    },
    [Symbol.dispose]() {
      deadlines[Symbol.dispose]();
      pauses[Symbol.dispose]();
      ends[Symbol.dispose]();
    },
  };
}
