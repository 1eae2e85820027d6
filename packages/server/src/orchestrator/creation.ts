import {
  type BuildId,
  type CaptureId,
  type Clock,
  createSandboxId,
  type KeyedQueue,
  type Log,
  PlatformError,
  type Reservation,
  type Rng,
  type SandboxRecord,
  type TemplateId,
  type UuidSource,
} from '@agentenv/core';
import type { Backend } from '@agentenv/runtime';
import type { ReadyTemplate, TemplateRegistry } from '../templates/template-registry.ts';
import { newChannelKey } from './channel-key.ts';
import type { OrchestratorConfig } from './config.ts';
import type { DurableState } from './durable-state.ts';
import type { EndCause, Ending } from './ending.ts';
import type { Launch } from './launch.ts';
import { isDeliberate, toShownFailure } from './launch-failure.ts';
import type { LifecycleMetrics } from './lifecycle-metrics.ts';
import type { CreateSandbox } from './orchestrator.ts';
import type { OwnerLog } from './owner-log.ts';
import type { Placement } from './placement.ts';
import { requireDuration } from './requirements.ts';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';

export interface CreationDependencies {
  readonly backend: Pick<Backend, 'name'>;
  readonly templates: Pick<TemplateRegistry, 'resolve' | 'spawned'>;
  readonly placement: Placement;
  readonly durable: Pick<DurableState, 'undoOf'>;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly ids: UuidSource;
  readonly log: Log;
  readonly owner: Pick<OwnerLog, 'creating' | 'createFailed' | 'ready'>;
  readonly metrics: Pick<LifecycleMetrics, 'createSucceeded' | 'createFailed'>;
  readonly config: OrchestratorConfig;
  readonly table: SandboxTable;
  readonly queue: KeyedQueue;
  readonly ending: Ending;
  readonly launch: Launch;
  /** Throws `unavailable` once the server shuts down. */
  readonly refuseWhileClosing: () => void;
}

/** Makes sandboxes from templates. */
export interface Creation {
  /** Work survives the caller: nothing a client does but a kill of the sandbox cuts it off. */
  create(request: CreateSandbox): Promise<SandboxRecord>;
  counts(): { readonly createSuccesses: number; readonly createFails: number };
}

interface Admitted {
  readonly entry: SandboxEntry;
  readonly reservation: Reservation;
}

const FAILED = 'the sandbox could not be started';

export function createCreation(deps: CreationDependencies): Creation {
  const { clock, config, ending, log, metrics, table } = deps;
  let createSuccesses = 0;
  let createFails = 0;

  function newRecord(request: CreateSandbox, template: ReadyTemplate): SandboxRecord {
    const now = clock.now();
    const { vcpus, memoryMB, diskSizeMB } = template.record;
    return {
      id: createSandboxId(deps.rng),
      templateId: template.record.id as TemplateId,
      buildId: template.record.buildId as BuildId,
      alias: template.alias,
      state: 'creating',
      instanceId: deps.ids.instanceId(),
      createdAt: now,
      startedAt: now,
      deadline: undefined,
      timeoutSeconds: request.timeoutSeconds,
      onTimeout: request.onTimeout,
      autoResume: request.autoResume,
      secure: request.secure,
      resources: { vcpus, memoryMB, diskSizeMB },
      network: request.network,
      metadata: request.metadata,
      envVars: request.envVars,
      defaultUser: config.defaultUser,
      defaultWorkdir: config.defaultWorkdir,
      envdVersion: config.envdVersion,
      backend: deps.backend.name,
      channelKey: newChannelKey(deps.rng),
      capture: undefined,
      runtime: undefined,
    };
  }

  /** A place on the host and an entry in the table, in one turn: nothing can come between the decision and its effect. */
  async function admit(request: CreateSandbox, template: ReadyTemplate): Promise<Admitted> {
    const host = await deps.placement.look();
    deps.refuseWhileClosing();
    const record = newRecord(request, template);
    const { held, reservation } = deps.placement.take(record.resources, host);
    const captures = new Set<CaptureId>();
    const entry = table.add(record, { held, captures, undo: deps.durable.undoOf(record.id, captures) });
    deps.owner.creating(record);
    return { entry, reservation };
  }

  function countFailure(entry: SandboxEntry, failure: PlatformError, error: unknown): void {
    createFails++;
    metrics.createFailed(failure.code);
    deps.owner.createFailed(entry.record.id, entry.stage, failure.code);
    log.error({ sandboxId: entry.record.id, stage: entry.stage, err: error }, 'sandbox could not be created');
  }

  /** The step of the sandbox's own queue. When it was aborted, whoever did that undoes it; otherwise it undoes itself. */
  async function start(
    { entry, reservation }: Admitted,
    template: ReadyTemplate,
    signal: AbortSignal,
  ): Promise<SandboxRecord> {
    try {
      const { record: planned } = entry;
      const record = await deps.launch(
        entry,
        {
          operation: 'create_warm',
          snapshot: template.snapshot,
          record: planned,
          timeoutSeconds: planned.timeoutSeconds,
        },
        signal,
      );
      reservation.settle();
      deps.owner.ready(record.id, clock.now() - record.createdAt);
      deps.templates.spawned(record.templateId);
      createSuccesses++;
      metrics.createSucceeded();
      return record;
    } catch (error) {
      if (signal.aborted) {
        if (!isDeliberate(signal.reason))
          countFailure(entry, toShownFailure(signal.reason, 'create_failed', FAILED), signal.reason);
        throw signal.reason;
      }
      const failure = toShownFailure(error, 'create_failed', FAILED);
      countFailure(entry, failure, error);
      const detail = `it could not be started (stage ${entry.stage})`;
      const cause: EndCause = { event: 'launch-failed', reason: 'create-failed', detail, error: failure };
      // A release that fails is logged and tried again; the client learns why its create failed.
      await ending.endFromWithin(entry, cause).catch(() => undefined);
      throw failure;
    }
  }

  return {
    async create(request) {
      deps.refuseWhileClosing();
      requireDuration('timeout', request.timeoutSeconds);
      // Traffic resumes nothing yet; to accept it would be a lie.
      if (request.autoResume) throw new PlatformError('unsupported_field', 'not supported: autoResume');
      const template = await deps.templates.resolve(request.template);
      const admitted = await admit(request, template);
      const { id } = admitted.entry.record;
      return await deps.queue.run(id, 'create', (signal) => start(admitted, template, signal));
    },
    counts: () => ({ createSuccesses, createFails }),
  };
}
