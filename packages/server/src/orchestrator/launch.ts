import {
  type Clock,
  type DeadlineQueue,
  deadlineAfter,
  type LifecycleChange,
  PlatformError,
  type SandboxRecord,
} from '@agentenv/core';
import type { Backend, LaunchPlan, RootFilesystem, RunningSandbox, StoredSnapshot } from '@agentenv/runtime';
import type { SandboxHooks } from '../hooks/sandbox-hooks.ts';
import type { StageMetrics } from '../observability/metrics.ts';
import type { Attachment } from './attachment.ts';
import type { OrchestratorConfig } from './config.ts';
import { createEngineStart } from './engine-start.ts';
import type { EventPublisher } from './event-publisher.ts';
import type { RecordKeeper } from './record-keeper.ts';
import { ENGINE, type SandboxEntry, type SandboxTable } from './sandbox-table.ts';
import { createStages } from './stages.ts';

export interface LaunchDependencies {
  readonly backend: Pick<Backend, 'create' | 'restore' | 'boot'>;
  readonly hooks: Pick<SandboxHooks, 'callsFor'>;
  readonly keeper: RecordKeeper;
  readonly table: SandboxTable;
  readonly deadlines: DeadlineQueue;
  readonly attachment: Attachment;
  readonly clock: Clock;
  readonly stages: StageMetrics;
  readonly events: EventPublisher;
  readonly config: OrchestratorConfig;
}

/** What a generation starts from: a capture, the disk of one that has to boot, or an image that has to. */
export type LaunchSource =
  | { readonly kind: 'capture' | 'disk'; readonly snapshot: StoredSnapshot }
  | { readonly kind: 'image'; readonly rootfs: RootFilesystem };

export interface LaunchRequest {
  /** For the figures of its stages. */
  readonly operation: 'create_warm' | 'create_cold' | 'fork' | 'resume';
  readonly source: LaunchSource;
  /** With the id and the key of the new generation; written before the engine is started. */
  readonly record: SandboxRecord;
  /** How long it may run from the moment it is ready, seconds. */
  readonly timeoutSeconds: number;
  readonly identity?: LaunchPlan['identity'];
  /** What is told of it once it runs. */
  readonly event: LifecycleChange;
}

/**
 * Brings a sandbox to running: ledger record, engine, guest API, ledger record with the runtime's identity. Every effect
 * has its undo on what the generation holds before it is attempted. Throws what failed and leaves the undoing to the
 * caller.
 */
export type Launch = (entry: SandboxEntry, request: LaunchRequest, signal: AbortSignal) => Promise<SandboxRecord>;

export function createLaunch(deps: LaunchDependencies): Launch {
  const { attachment, clock, config, keeper, table } = deps;

  function startEngine(entry: SandboxEntry, request: LaunchRequest, signal: AbortSignal): Promise<RunningSandbox> {
    const { record } = entry;
    const { source } = request;
    const engine = createEngineStart(clock, {
      timeoutMs: request.operation === 'resume' ? config.resumeTimeoutMs : config.createTimeoutMs,
      graceMs: config.killGraceMs,
      signal,
    });
    entry.held.push(ENGINE, engine.stop);
    const plan: LaunchPlan = {
      sandboxId: record.id,
      instanceId: record.instanceId,
      templateId: record.templateId,
      resources: record.resources,
      network: record.network,
      channelKey: Uint8Array.fromHex(record.channelKey),
      hostname: record.id,
      ...deps.hooks.callsFor(record, source.kind === 'image' ? 'fresh' : 'resume'),
      ...(request.identity === undefined ? {} : { identity: request.identity }),
    };
    return engine.run((aborted) => {
      switch (source.kind) {
        case 'image':
          return deps.backend.create(source.rootfs, plan, aborted);
        case 'disk':
          return deps.backend.boot(source.snapshot, plan, aborted);
        case 'capture':
          return deps.backend.restore(source.snapshot, plan, aborted);
      }
    });
  }

  return async (entry, request, signal) => {
    const staged = createStages(deps.stages, request.operation, entry, signal);
    await staged('record', async () => {
      await keeper.write(request.record, signal);
      signal.throwIfAborted();
      table.update(entry, request.record);
    });
    const running = await staged('restore', () => startEngine(entry, request, signal));
    const over = attachment.watch(entry, running);

    return await staged('commit', async () => {
      const envd = attachment.startEnvd(entry, running);
      const ready: SandboxRecord = {
        ...entry.record,
        state: 'running',
        timeoutSeconds: request.timeoutSeconds,
        deadline: deadlineAfter(clock.now(), request.timeoutSeconds),
        runtime: running.identity,
      };
      await keeper.write(ready, signal);
      signal.throwIfAborted();
      const end = over();
      if (end !== undefined) {
        throw new PlatformError('create_failed', `the sandbox ended before it was ready: ${end.reason}`, {
          details: { ...end },
        });
      }
      table.update(entry, ready);
      attachment.publish(entry, running, envd);
      if (table.move(entry, 'ready') === undefined) {
        throw new PlatformError('internal', `a sandbox that is ${entry.record.state} cannot become ready`);
      }
      if (ready.deadline !== undefined) deps.deadlines.set(ready.id, ready.deadline);
      deps.events.publish(entry.record, request.event);
      return entry.record;
    });
  };
}
