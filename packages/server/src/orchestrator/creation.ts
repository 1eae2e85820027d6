import {
  type Admission,
  type Clock,
  callWithin,
  createSandboxId,
  createUndoStack,
  type KeyedQueue,
  type Log,
  PlatformError,
  type Rng,
  type SandboxRecord,
  type TemplateId,
  type UuidSource,
} from '@agentenv/core';
import type { Backend } from '@agentenv/runtime';
import type { ReadyTemplate, TemplateRegistry } from '../templates/template-registry.ts';
import type { OrchestratorConfig } from './config.ts';
import type { EndCause, Ending } from './ending.ts';
import type { HostCapacityProbe } from './host-capacity.ts';
import type { Launch } from './launch.ts';
import type { LifecycleMetrics } from './lifecycle-metrics.ts';
import type { CreateSandbox } from './orchestrator.ts';
import type { OwnerLog } from './owner-log.ts';
import { requireDuration } from './requirements.ts';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';

export interface CreationDependencies {
  readonly backend: Pick<Backend, 'name'>;
  readonly templates: Pick<TemplateRegistry, 'resolve' | 'spawned'>;
  readonly admission: Admission;
  readonly hostCapacity: HostCapacityProbe;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly ids: UuidSource;
  readonly log: Log;
  readonly owner: Pick<OwnerLog, 'creating' | 'createFailed'>;
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

const CHANNEL_KEY_BYTES = 16;
/** Longest look at the host's memory and disk, milliseconds. */
const CAPACITY_TIMEOUT_MS = 5_000;

/** Failures of a launch that a client should see as they are; any other one is a failed create (500). */
const SHOWN_FAILURES: ReadonlySet<PlatformError['code']> = new Set([
  'capacity',
  'conflict',
  'create_failed',
  'deadline_exceeded',
  'no_space',
  'unavailable',
]);

function toCreateFailure(error: unknown): PlatformError {
  const failure = PlatformError.fromUnknown(error);
  if (SHOWN_FAILURES.has(failure.code)) return failure;
  return new PlatformError('create_failed', 'the sandbox could not be started', { cause: failure });
}

/** Cut off because somebody wanted it gone, not because anything went wrong. */
function isDeliberate(reason: unknown): boolean {
  return reason instanceof PlatformError && (reason.code === 'killed' || reason.code === 'unavailable');
}

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
      channelKey: deps.rng.bytes(CHANNEL_KEY_BYTES).toHex(),
      runtime: undefined,
    };
  }

  /** A place on the host and an entry in the table, in one turn: nothing can come between the decision and its effect. */
  async function admit(request: CreateSandbox, template: ReadyTemplate): Promise<SandboxEntry> {
    const bounds = { what: "the host's memory and disk", timeoutMs: CAPACITY_TIMEOUT_MS, graceMs: 0 };
    const host = await callWithin(clock, bounds, () => deps.hostCapacity());
    deps.refuseWhileClosing();
    const record = newRecord(request, template);
    const reservation = deps.admission.reserve(record.resources, host);
    const undo = createUndoStack({ clock, stepTimeoutMs: config.releaseTimeoutMs });
    undo.push('place on the host', () => reservation.release());
    const entry = table.add(record, reservation, undo);
    deps.owner.creating(record);
    return entry;
  }

  function countFailure(entry: SandboxEntry, failure: PlatformError, error: unknown): void {
    createFails++;
    metrics.createFailed(failure.code);
    deps.owner.createFailed(entry.record.id, entry.stage, failure.code);
    log.error({ sandboxId: entry.record.id, stage: entry.stage, err: error }, 'sandbox could not be created');
  }

  /** The step of the sandbox's own queue. When it was aborted, whoever did that undoes it; otherwise it undoes itself. */
  async function start(entry: SandboxEntry, template: ReadyTemplate, signal: AbortSignal): Promise<SandboxRecord> {
    try {
      const record = await deps.launch(entry, template, signal);
      entry.reservation.settle();
      deps.templates.spawned(record.templateId);
      createSuccesses++;
      metrics.createSucceeded();
      return record;
    } catch (error) {
      if (signal.aborted) {
        if (!isDeliberate(signal.reason)) countFailure(entry, toCreateFailure(signal.reason), signal.reason);
        throw signal.reason;
      }
      const failure = toCreateFailure(error);
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
      // The orchestrator cannot pause or resume yet; to accept and then kill would be a lie.
      if (request.onTimeout === 'pause') throw new PlatformError('unsupported_field', 'not supported: autoPause');
      if (request.autoResume) throw new PlatformError('unsupported_field', 'not supported: autoResume');
      const template = await deps.templates.resolve(request.template);
      const entry = await admit(request, template);
      return await deps.queue.run(entry.record.id, 'create', (signal) => start(entry, template, signal));
    },
    counts: () => ({ createSuccesses, createFails }),
  };
}
