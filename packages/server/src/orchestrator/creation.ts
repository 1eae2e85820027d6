import {
  type BuildId,
  type CaptureId,
  type Clock,
  createSandboxId,
  type KeyedQueue,
  type Log,
  type PlatformError,
  type Reservation,
  type Rng,
  type SandboxRecord,
  type TemplateId,
  type UuidSource,
} from '@agentenv/core';
import type { Backend } from '@agentenv/runtime';
import type { SandboxHooks } from '../hooks/sandbox-hooks.ts';
import type { LeasedTemplate, TemplateCatalogue } from '../templates/template-catalogue.ts';
import { newChannelKey } from './channel-key.ts';
import type { OrchestratorConfig } from './config.ts';
import type { DurableState } from './durable-state.ts';
import type { EndCause, Ending } from './ending.ts';
import type { Launch, LaunchRequest, LaunchSource } from './launch.ts';
import { isDeliberate, toShownFailure } from './launch-failure.ts';
import type { LifecycleMetrics } from './lifecycle-metrics.ts';
import type { HeldCapture } from './live-capture.ts';
import type { CreateColdSandbox, CreateSandbox } from './orchestrator.ts';
import type { OwnerLog } from './owner-log.ts';
import type { Placement } from './placement.ts';
import { requireDuration } from './requirements.ts';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';

export interface CreationDependencies {
  readonly backend: Pick<Backend, 'name'>;
  readonly templates: Pick<TemplateCatalogue, 'resolve' | 'spawned'>;
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
  readonly hooks: Pick<SandboxHooks, 'requireReader'>;
  /** Throws `unavailable` once the server shuts down. */
  readonly refuseWhileClosing: () => void;
}

/** Makes new sandboxes. */
export interface Creation {
  /** Work survives the caller: nothing a client does but a kill of the sandbox cuts it off. */
  create(request: CreateSandbox): Promise<SandboxRecord>;
  /** The same from an image that boots. */
  createCold(request: CreateColdSandbox): Promise<SandboxRecord>;
  /**
   * Makes a sandbox that goes on where `capture` was taken: a new id, and with it tokens, host name and instance of its own,
   * and everything else as its source has it. Refused or failed as `create` is.
   */
  createChild(capture: Pick<HeldCapture, 'source' | 'snapshot'>, timeoutSeconds: number): Promise<SandboxRecord>;
  /** Sandboxes that never got as far as a record. */
  countFailures(code: PlatformError['code'], count: number): void;
  counts(): { readonly createSuccesses: number; readonly createFails: number };
}

/** What a new sandbox starts from. */
interface Origin extends Pick<LaunchRequest, 'operation' | 'event'> {
  readonly source: LaunchSource;
  readonly onReady: (record: SandboxRecord) => void;
}

interface Admitted {
  readonly entry: SandboxEntry;
  readonly reservation: Reservation;
}

const FAILED = 'the sandbox could not be started';
const CREATED = { type: 'sandbox.lifecycle.created' } as const;

export function createCreation(deps: CreationDependencies): Creation {
  const { clock, config, ending, log, metrics, table } = deps;
  let createSuccesses = 0;
  let createFails = 0;

  /** What no two sandboxes have in common. */
  function newIdentity() {
    const now = clock.now();
    return {
      id: createSandboxId(deps.rng),
      state: 'creating',
      instanceId: deps.ids.instanceId(),
      createdAt: now,
      startedAt: now,
      deadline: undefined,
      backend: deps.backend.name,
      channelKey: newChannelKey(deps.rng),
      capture: undefined,
      captureKind: 'full',
      runtime: undefined,
    } as const;
  }

  function asRequested(request: Omit<CreateSandbox, 'template'>) {
    const { timeoutSeconds, onTimeout, timeoutKeeps, autoResume, secure, network, metadata } = request;
    return { timeoutSeconds, onTimeout, timeoutKeeps, autoResume, secure, network, metadata };
  }

  function newColdRecord(request: CreateColdSandbox): SandboxRecord {
    const { defaultUser, defaultWorkdir, envdVersion } = config;
    return {
      ...newIdentity(),
      ...asRequested(request),
      ...{ defaultUser, defaultWorkdir, envdVersion },
      templateId: request.image as TemplateId,
      buildId: undefined,
      alias: undefined,
      resources: request.resources,
      envVars: request.envVars,
      customExtensionParams: request.customExtensionParams ?? {},
    };
  }

  function newRecord(request: CreateSandbox, template: LeasedTemplate): SandboxRecord {
    const { vcpus, memoryMB, diskSizeMB } = template.record;
    const { envVars, defaultUser, defaultWorkdir } = template.context ?? { ...config, envVars: {} };
    return {
      ...newIdentity(),
      templateId: template.record.id as TemplateId,
      buildId: template.record.buildId as BuildId,
      alias: template.alias,
      ...asRequested(request),
      resources: { vcpus, memoryMB, diskSizeMB },
      customExtensionParams: request.customExtensionParams ?? template.context?.customExtensionParams ?? {},
      envVars: { ...envVars, ...request.envVars },
      defaultUser,
      defaultWorkdir,
      envdVersion: config.envdVersion,
    };
  }

  /** A place on the host and an entry in the table, in one turn: nothing can come between the decision and its effect. */
  async function admit(newRecord: () => SandboxRecord): Promise<Admitted> {
    const host = await deps.placement.look();
    deps.refuseWhileClosing();
    const record = newRecord();
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
    { operation, source, event, onReady }: Origin,
    signal: AbortSignal,
  ): Promise<SandboxRecord> {
    try {
      const { record: planned } = entry;
      const record = await deps.launch(
        entry,
        { operation, source, event, record: planned, timeoutSeconds: planned.timeoutSeconds },
        signal,
      );
      reservation.settle();
      deps.owner.ready(record.id, clock.now() - record.createdAt);
      onReady(record);
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

  async function launch(newRecord: () => SandboxRecord, origin: Origin): Promise<SandboxRecord> {
    const admitted = await admit(newRecord);
    return await deps.queue.run(admitted.entry.record.id, 'create', (signal) => start(admitted, origin, signal));
  }

  function check(request: Omit<CreateSandbox, 'template'>): void {
    deps.refuseWhileClosing();
    requireDuration('timeout', request.timeoutSeconds);
    deps.hooks.requireReader(request.customExtensionParams);
  }

  return {
    async createCold(request) {
      check(request);
      const source: LaunchSource = { kind: 'image', rootfs: request.rootfs };
      return await launch(() => newColdRecord(request), {
        operation: 'create_cold',
        source,
        event: CREATED,
        onReady() {},
      });
    },
    async create(request) {
      check(request);
      using template = await deps.templates.resolve(request.template);
      const { snapshot } = template;
      const onReady = (record: SandboxRecord): void => deps.templates.spawned(record);
      const source: LaunchSource = { kind: 'capture', snapshot };
      return await launch(() => newRecord(request, template), {
        operation: 'create_warm',
        source,
        event: CREATED,
        onReady,
      });
    },
    createChild({ source, snapshot }, timeoutSeconds) {
      const child = (): SandboxRecord => ({ ...source, ...newIdentity(), timeoutSeconds });
      const event = { type: 'sandbox.lifecycle.forked', sourceSandboxId: source.id } as const;
      return launch(child, { operation: 'fork', source: { kind: 'capture', snapshot }, event, onReady() {} });
    },
    countFailures(code, count) {
      createFails += count;
      for (let index = 0; index < count; index++) metrics.createFailed(code);
    },
    counts: () => ({ createSuccesses, createFails }),
  };
}
