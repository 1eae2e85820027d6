import {
  type CaptureId,
  type CaptureKind,
  type Clock,
  callWithin,
  type DeadlineQueue,
  generationBegan,
  type Log,
  PlatformError,
  type SandboxRecord,
  type UuidSource,
} from '@agentenv/core';
import type { CapturedSnapshot, RuntimeEnd } from '@agentenv/runtime';
import type { CaptureStore } from '@agentenv/storage';
import type { StageMetrics } from '../observability/metrics.ts';
import type { SandboxMetrics } from '../observability/sandbox-metrics.ts';
import type { OrchestratorConfig } from './config.ts';
import type { DurableState } from './durable-state.ts';
import type { Ending } from './ending.ts';
import type { EventPublisher } from './event-publisher.ts';
import type { HeldRelease } from './held-release.ts';
import { toShownFailure } from './launch-failure.ts';
import type { LifecycleMetrics } from './lifecycle-metrics.ts';
import type { OwnerLog } from './owner-log.ts';
import type { RecordKeeper } from './record-keeper.ts';
import { sandboxConflict } from './sandbox-access.ts';
import type { Generation, SandboxEntry, SandboxTable } from './sandbox-table.ts';
import { createSocketGroup } from './socket-group.ts';
import { createStages } from './stages.ts';

/**
 * Pauses a running sandbox, as a step of its own queue. It leaves the data plane and its clients are reset; then memory,
 * devices and disk are captured, or its disk alone, and only when the ledger says that it is paused its engine is stopped: whatever fails
 * before that, the sandbox runs on, unless its guest cannot. Work survives the caller; a kill cuts it off.
 */
export type Pausing = (entry: SandboxEntry, keeps: CaptureKind, signal: AbortSignal) => Promise<SandboxRecord>;

export interface PausingDependencies {
  readonly table: SandboxTable;
  readonly deadlines: DeadlineQueue;
  readonly keeper: RecordKeeper;
  readonly captures: CaptureStore;
  readonly durable: Pick<DurableState, 'dropStale'>;
  readonly heldRelease: HeldRelease;
  readonly ending: Ending;
  readonly ids: Pick<UuidSource, 'captureId'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly owner: Pick<OwnerLog, 'pausing' | 'paused' | 'pauseFailed'>;
  readonly samples: Pick<SandboxMetrics, 'attach'>;
  readonly stages: StageMetrics;
  readonly events: EventPublisher;
  readonly metrics: Pick<LifecycleMetrics, 'pauseSucceeded' | 'pauseFailed'>;
  readonly config: OrchestratorConfig;
}

/** What one attempt has done to the guest. */
interface Attempt {
  readonly before: SandboxRecord;
  readonly generation: Generation;
  readonly captureId: CaptureId;
  readonly keeps: CaptureKind;
  /** `unknown`: a capture is under way, or was left behind in the middle of it. */
  guest: 'running' | 'unknown' | 'held';
  captured: CapturedSnapshot | undefined;
  recordWritten: 'no' | 'perhaps';
  /** Set when the engine or its guest is gone. */
  end: RuntimeEnd | undefined;
}

const FAILED = 'the sandbox could not be paused';

export function createPausing(deps: PausingDependencies): Pausing {
  const { clock, config, keeper, log, table } = deps;

  /** What happens at once: no request reaches it any more, then those that are under way are cut off. */
  function withdraw(entry: SandboxEntry, generation: Generation): void {
    if (table.move(entry, 'pause') === undefined) throw sandboxConflict(entry.record);
    deps.deadlines.delete(entry.record.id);
    generation.sockets.destroy();
    generation.sampling[Symbol.dispose]();
    deps.owner.pausing(entry.record.id);
  }

  /** Follows the engine: a capture of one that is gone must not be waited for. */
  function watch(attempt: Attempt): AbortSignal {
    const gone = new AbortController();
    void attempt.generation.running.ended.then((end) => {
      attempt.end = end;
      gone.abort(new PlatformError('internal', `the sandbox ended while it was paused: ${end.reason}`));
    });
    return gone.signal;
  }

  async function capture(attempt: Attempt, directory: string, signal: AbortSignal): Promise<void> {
    const { running } = attempt.generation;
    const bounds = {
      what: 'the capture',
      timeoutMs: config.captureTimeoutMs,
      graceMs: config.killGraceMs,
      signal: AbortSignal.any([signal, watch(attempt)]),
    };
    await callWithin(clock, bounds, async (aborted) => {
      attempt.guest = 'unknown';
      try {
        const capturing =
          attempt.keeps === 'full' ? running.capture(directory, aborted) : running.captureDisk(directory, aborted);
        attempt.captured = await capturing;
        attempt.guest = 'held';
      } catch (error) {
        attempt.guest = 'running';
        throw error;
      }
    });
  }

  async function letGo({ captured, before }: Attempt): Promise<void> {
    if (captured === undefined) return;
    try {
      const bounds = { what: 'the end of the capture', timeoutMs: config.releaseTimeoutMs, graceMs: 0 };
      await callWithin(clock, bounds, () => captured.release());
    } catch (error) {
      // Nothing but the backend's own bookkeeping; what was captured is complete.
      log.warn({ sandboxId: before.id, err: error }, 'the backend did not let go of a capture');
    }
  }

  /** The ledger may say that it is paused by now; it must not when the guest runs on. */
  async function takeBack({ before, recordWritten }: Attempt, signal: AbortSignal): Promise<void> {
    if (recordWritten === 'no') return;
    try {
      await keeper.write(before, signal);
    } catch (error) {
      // The next write of this record says so again; a start before that sees that the guest runs.
      log.error({ sandboxId: before.id, err: error }, 'the ledger may take a running sandbox for a paused one');
    }
  }

  async function letGuestGoOn(attempt: Attempt): Promise<void> {
    if (attempt.guest === 'unknown') throw new PlatformError('internal', 'the capture did not come to an end');
    if (attempt.guest === 'running') return;
    const bounds = { what: 'the guest', timeoutMs: config.releaseTimeoutMs, graceMs: 0 };
    await callWithin(clock, bounds, () => attempt.generation.running.release());
    attempt.guest = 'running';
  }

  function publishAgain(entry: SandboxEntry, { generation }: Attempt): void {
    if (table.move(entry, 'capture-refused') === undefined) return; // killed meanwhile
    const { id, deadline } = entry.record;
    const sampling = deps.samples.attach(id, generation.running.agent);
    entry.generation = { ...generation, sockets: createSocketGroup(), sampling };
    if (deadline !== undefined) deps.deadlines.set(id, Math.max(deadline, clock.now()));
  }

  /** After a failure: the sandbox runs on as if nothing had been, or it ends because it cannot. */
  async function recover(
    entry: SandboxEntry,
    attempt: Attempt,
    failure: PlatformError,
    signal: AbortSignal,
  ): Promise<void> {
    try {
      if (attempt.end === undefined) {
        await takeBack(attempt, signal);
        await letGuestGoOn(attempt);
      }
    } catch (error) {
      log.error({ sandboxId: entry.record.id, err: error }, 'the guest does not go on after a failed capture');
      attempt.guest = 'unknown';
    }
    if (attempt.end === undefined && attempt.guest === 'running') {
      publishAgain(entry, attempt);
      await deps.durable.dropStale(entry);
      return;
    }
    const cause =
      attempt.end === undefined
        ? ({ event: 'capture-lost', reason: 'capture-lost', detail: 'its guest was lost in a failed capture' } as const)
        : ({ event: 'runtime-ended', reason: attempt.end.reason, detail: attempt.end.detail } as const);
    // A release that fails is logged and tried again; the client learns why the pause failed.
    await deps.ending.endFromWithin(entry, { ...cause, error: failure }).catch(() => undefined);
  }

  async function store(entry: SandboxEntry, attempt: Attempt, signal: AbortSignal): Promise<SandboxRecord> {
    const staged = createStages(deps.stages, 'pause', entry, signal);
    entry.captures.add(attempt.captureId);
    const directory = await staged('allocate', () => {
      const bounds = { what: 'the data disk', timeoutMs: config.ledgerTimeoutMs, graceMs: 0, signal };
      return callWithin(clock, bounds, () => deps.captures.allocate(attempt.captureId));
    });
    await staged('capture', () => capture(attempt, directory, signal));
    const paused: SandboxRecord = {
      ...attempt.before,
      state: 'paused',
      deadline: clock.now(),
      capture: attempt.captureId,
      captureKind: attempt.keeps,
      // Still of use when the server dies before the engine is stopped.
      runtime: attempt.before.runtime,
    };
    await staged('record', async () => {
      attempt.recordWritten = 'perhaps';
      await keeper.write(paused, signal);
    });
    return paused;
  }

  return async (entry, keeps, signal) => {
    const { record: before, generation } = entry;
    if (generation === undefined) throw new PlatformError('internal', 'a sandbox that runs has no generation');
    const attempt: Attempt = {
      ...{ before, generation, captureId: deps.ids.captureId(), keeps },
      ...{ guest: 'running', captured: undefined, recordWritten: 'no', end: undefined },
    };
    withdraw(entry, generation);
    let paused: SandboxRecord;
    try {
      paused = await store(entry, attempt, signal);
    } catch (error) {
      // Whoever aborted it releases everything.
      if (signal.aborted) throw signal.reason;
      const failure = toShownFailure(error, 'internal', FAILED);
      deps.metrics.pauseFailed(failure.code);
      deps.owner.pauseFailed(before.id, entry.stage, failure.code);
      log.error({ sandboxId: before.id, stage: entry.stage, err: error }, FAILED);
      await recover(entry, attempt, failure, signal);
      throw failure;
    } finally {
      await letGo(attempt);
    }
    table.update(entry, paused);
    entry.generation = undefined;
    entry.failedPauses = 0;
    if (table.move(entry, 'stored') !== undefined) {
      deps.events.publish(entry.record, { type: 'sandbox.lifecycle.paused', ranSince: generationBegan(before) });
    }
    deps.metrics.pauseSucceeded();
    deps.owner.paused(before.id, keeps);
    await deps.heldRelease.release(entry);
    await deps.durable.dropStale(entry);
    return entry.record;
  };
}
