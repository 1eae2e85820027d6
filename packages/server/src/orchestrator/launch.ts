import {
  type Clock,
  callWithin,
  type DeadlineQueue,
  deadlineAfter,
  type LifecycleChange,
  type Log,
  PlatformError,
  type SandboxRecord,
} from '@agentenv/core';
import type { EnvdOptions, EnvdService } from '@agentenv/envd';
import type {
  Backend,
  LaunchPlan,
  RootFilesystem,
  RunningSandbox,
  RuntimeEnd,
  StoredSnapshot,
} from '@agentenv/runtime';
import type { SandboxHooks } from '../hooks/sandbox-hooks.ts';
import type { StageMetrics } from '../observability/metrics.ts';
import type { SandboxMetrics } from '../observability/sandbox-metrics.ts';
import type { OrchestratorConfig } from './config.ts';
import { createEngineStart } from './engine-start.ts';
import type { EventPublisher } from './event-publisher.ts';
import type { OwnerLog } from './owner-log.ts';
import type { RecordKeeper } from './record-keeper.ts';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';
import { createSocketGroup } from './socket-group.ts';
import { createStages } from './stages.ts';

export interface LaunchDependencies {
  readonly backend: Pick<Backend, 'create' | 'restore'>;
  readonly hooks: Pick<SandboxHooks, 'callsFor'>;
  readonly keeper: RecordKeeper;
  readonly table: SandboxTable;
  readonly deadlines: DeadlineQueue;
  readonly createEnvd: (options: EnvdOptions) => EnvdService;
  readonly accessToken: (record: SandboxRecord) => string | undefined;
  readonly clock: Clock;
  readonly log: Log;
  readonly owner: Pick<OwnerLog, 'journal' | 'agentLost'>;
  readonly samples: Pick<SandboxMetrics, 'attach'>;
  readonly stages: StageMetrics;
  readonly events: EventPublisher;
  readonly config: OrchestratorConfig;
  /** Called when a generation is gone without being asked. */
  readonly onRuntimeEnded: (entry: SandboxEntry, end: RuntimeEnd) => void;
}

/** Longest orderly end of a guest API service, milliseconds; the engine must not have to wait for it. */
const ENVD_END_TIMEOUT_MS = 1_000;

/** What a generation starts from: a capture, or an image that has to boot. */
export type LaunchSource =
  | { readonly kind: 'capture'; readonly snapshot: StoredSnapshot }
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
  const { clock, config, keeper, table } = deps;

  function startEngine(entry: SandboxEntry, request: LaunchRequest, signal: AbortSignal): Promise<RunningSandbox> {
    const { record } = entry;
    const { source } = request;
    const engine = createEngineStart(clock, {
      timeoutMs: request.operation === 'resume' ? config.resumeTimeoutMs : config.createTimeoutMs,
      graceMs: config.killGraceMs,
      signal,
    });
    entry.held.push('engine', engine.stop);
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
    return engine.run((aborted) =>
      source.kind === 'image'
        ? deps.backend.create(source.rootfs, plan, aborted)
        : deps.backend.restore(source.snapshot, plan, aborted),
    );
  }

  /** Tells of the end of this generation as long as it is the sandbox's; the answer knows whether it has ended. */
  function watch(entry: SandboxEntry, running: RunningSandbox): () => RuntimeEnd | undefined {
    let ended: RuntimeEnd | undefined;
    const isCurrent = (): boolean => entry.record.instanceId === running.instanceId && entry.record.state !== 'paused';
    void running.ended.then((end) => {
      ended = end;
      if (isCurrent()) deps.onRuntimeEnded(entry, end);
    });
    void running.agent.closed.then(({ kind }) => {
      if (kind !== 'closed' && isCurrent()) deps.owner.agentLost(entry.record.id, kind);
    });
    return () => ended;
  }

  function startEnvd(entry: SandboxEntry, running: RunningSandbox): EnvdService {
    const { record } = entry;
    const envd = deps.createEnvd({
      agent: running.agent,
      clock,
      log: deps.log,
      journal: deps.owner.journal(record.id),
      sandboxId: record.id,
      templateId: record.templateId,
      accessToken: deps.accessToken(record),
      defaultUser: record.defaultUser,
      defaultWorkdir: record.defaultWorkdir,
      envVars: record.envVars,
    });
    entry.held.push('guest API', async () => {
      try {
        const bounds = { what: 'the guest API', timeoutMs: ENVD_END_TIMEOUT_MS, graceMs: 0 };
        await callWithin(clock, bounds, async () => await envd[Symbol.asyncDispose]());
      } catch (error) {
        // Its sockets are reset and its engine ends next; nothing is left that it could hold.
        deps.log.warn({ sandboxId: record.id, err: error }, 'the guest API did not end in time');
      }
    });
    return envd;
  }

  return async (entry, request, signal) => {
    const staged = createStages(deps.stages, request.operation, entry, signal);
    await staged('record', async () => {
      await keeper.write(request.record, signal);
      signal.throwIfAborted();
      table.update(entry, request.record);
    });
    const running = await staged('restore', () => startEngine(entry, request, signal));
    const over = watch(entry, running);

    return await staged('commit', async () => {
      const envd = startEnvd(entry, running);
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
      const sampling = deps.samples.attach(ready.id, running.agent);
      entry.generation = { running, envd, sockets: createSocketGroup(), sampling };
      if (table.move(entry, 'ready') === undefined) {
        throw new PlatformError('internal', `a sandbox that is ${entry.record.state} cannot become ready`);
      }
      if (ready.deadline !== undefined) deps.deadlines.set(ready.id, ready.deadline);
      deps.events.publish(entry.record, request.event);
      return entry.record;
    });
  };
}
