import {
  type CaptureKind,
  type Clock,
  callWithin,
  type Log,
  PlatformError,
  type Rng,
  type SandboxRecord,
  type UuidSource,
} from '@agentenv/core';
import type { StoredSnapshot } from '@agentenv/runtime';
import type { CaptureStore } from '@agentenv/storage';
import { newChannelKey } from './channel-key.ts';
import type { OrchestratorConfig } from './config.ts';
import type { HeldRelease } from './held-release.ts';
import type { Launch } from './launch.ts';
import { toShownFailure } from './launch-failure.ts';
import type { LifecycleMetrics } from './lifecycle-metrics.ts';
import type { OwnerLog } from './owner-log.ts';
import type { Placement } from './placement.ts';
import type { RecordKeeper } from './record-keeper.ts';
import { sandboxConflict } from './sandbox-access.ts';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';

export interface Resuming {
  /**
   * Lets a paused sandbox go on, as a step of its own queue: same id, tokens, variables, metadata and network policy, a
   * new generation. From its disk it boots, whatever else was captured. On failure it is paused as before. Work survives the caller; a kill cuts it off.
   */
  resume(
    entry: SandboxEntry,
    request: { readonly timeoutSeconds: number; readonly from: CaptureKind },
    signal: AbortSignal,
  ): Promise<SandboxRecord>;
  /** Back to paused, after the step was cut off by somebody who does not want to end it. */
  rollBack(entry: SandboxEntry, signal: AbortSignal): Promise<void>;
}

export interface ResumingDependencies {
  readonly table: SandboxTable;
  readonly keeper: RecordKeeper;
  readonly captures: Pick<CaptureStore, 'open'>;
  readonly heldRelease: HeldRelease;
  readonly placement: Placement;
  readonly launch: Launch;
  readonly ids: Pick<UuidSource, 'instanceId'>;
  readonly rng: Rng;
  readonly clock: Clock;
  readonly log: Log;
  readonly owner: Pick<OwnerLog, 'resuming' | 'resumed' | 'resumeFailed'>;
  readonly metrics: Pick<LifecycleMetrics, 'resumeSucceeded' | 'resumeFailed'>;
  readonly config: OrchestratorConfig;
}

const FAILED = 'the sandbox could not be resumed';

export function createResuming(deps: ResumingDependencies): Resuming {
  const { clock, config, keeper, log, table } = deps;

  async function openCapture({ capture }: SandboxRecord, signal: AbortSignal): Promise<StoredSnapshot> {
    if (capture === undefined) throw new PlatformError('internal', 'a paused sandbox has no capture');
    const bounds = { what: 'the data disk', timeoutMs: config.ledgerTimeoutMs, graceMs: 0, signal };
    return await callWithin(clock, bounds, () => deps.captures.open(capture));
  }

  async function start(
    entry: SandboxEntry,
    timeoutSeconds: number,
    from: CaptureKind,
    signal: AbortSignal,
  ): Promise<SandboxRecord> {
    const { record } = entry;
    // There must never be two generations of one sandbox.
    if (!(await deps.heldRelease.release(entry))) {
      throw new PlatformError('unavailable', 'the sandbox is still being paused: its engine does not stop', {
        retryAfterSeconds: 1,
      });
    }
    const snapshot = await openCapture(record, signal);
    const host = await deps.placement.look();
    signal.throwIfAborted();
    const { held, reservation } = deps.placement.take(record.resources, host);
    entry.held = held;
    const resuming: SandboxRecord = {
      ...record,
      state: 'resuming',
      instanceId: deps.ids.instanceId(),
      channelKey: newChannelKey(deps.rng),
      runtime: undefined,
    };
    const event = { type: 'sandbox.lifecycle.resumed' } as const;
    const plan = { operation: 'resume', record: resuming, timeoutSeconds, event } as const;
    // What a guest is called is in its memory: one that boots is told anew.
    const origin =
      from === 'full'
        ? ({ source: { kind: 'capture', snapshot }, identity: 'kept' } as const)
        : ({ source: { kind: 'disk', snapshot } } as const);
    const running = await deps.launch(entry, { ...plan, ...origin }, signal);
    reservation.settle();
    return running;
  }

  async function rollBack(entry: SandboxEntry, signal: AbortSignal): Promise<void> {
    await deps.heldRelease.release(entry);
    const paused: SandboxRecord = { ...entry.record, state: 'paused', runtime: undefined };
    try {
      await keeper.write(paused, signal);
    } catch (error) {
      if (signal.aborted) return;
      log.warn({ sandboxId: paused.id, err: error }, 'the ledger takes a paused sandbox for a resuming one');
    }
    if (table.move(entry, 'launch-failed') !== undefined) table.update(entry, paused);
  }

  return {
    async resume(entry, request, signal) {
      const { id } = entry.record;
      const began = clock.now();
      if (table.move(entry, 'resume') === undefined) throw sandboxConflict(entry.record);
      entry.stage = 'prepare';
      const from = entry.record.captureKind === 'disk' ? 'disk' : request.from;
      deps.owner.resuming(id, from);
      try {
        const record = await start(entry, request.timeoutSeconds, from, signal);
        deps.metrics.resumeSucceeded();
        deps.owner.resumed(record, clock.now() - began);
        return record;
      } catch (error) {
        // Whoever aborted it releases everything, or rolls it back.
        if (signal.aborted) throw signal.reason;
        const failure = toShownFailure(error, 'create_failed', FAILED);
        deps.metrics.resumeFailed(failure.code);
        deps.owner.resumeFailed(id, entry.stage, failure.code);
        log.error({ sandboxId: id, stage: entry.stage, err: error }, FAILED);
        await rollBack(entry, signal);
        throw failure;
      }
    },
    rollBack,
  };
}
