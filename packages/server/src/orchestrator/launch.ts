import {
  type Clock,
  callWithin,
  type DeadlineQueue,
  deadlineAfter,
  type Log,
  PlatformError,
  type SandboxRecord,
} from '@agentenv/core';
import type { EnvdOptions, EnvdService } from '@agentenv/envd';
import type { Backend, LaunchPlan, RunningSandbox, RuntimeEnd } from '@agentenv/runtime';
import type { StageMetrics } from '../observability/metrics.ts';
import type { SandboxMetrics } from '../observability/sandbox-metrics.ts';
import type { ReadyTemplate } from '../templates/template-registry.ts';
import type { OrchestratorConfig } from './config.ts';
import { createEngineStart } from './engine-start.ts';
import type { OwnerLog } from './owner-log.ts';
import type { RecordKeeper } from './record-keeper.ts';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';
import { createSocketGroup } from './socket-group.ts';

export interface LaunchDependencies {
  readonly backend: Pick<Backend, 'restore'>;
  readonly keeper: RecordKeeper;
  readonly table: SandboxTable;
  readonly deadlines: DeadlineQueue;
  readonly createEnvd: (options: EnvdOptions) => EnvdService;
  readonly accessToken: (record: SandboxRecord) => string | undefined;
  readonly clock: Clock;
  readonly log: Log;
  readonly owner: Pick<OwnerLog, 'journal' | 'ready' | 'agentLost'>;
  readonly samples: Pick<SandboxMetrics, 'attach'>;
  readonly stages: StageMetrics;
  readonly config: OrchestratorConfig;
  /** Called when a generation is gone without being asked. */
  readonly onRuntimeEnded: (entry: SandboxEntry, end: RuntimeEnd) => void;
}

/** Longest orderly end of a guest API service, milliseconds; the engine must not have to wait for it. */
const ENVD_END_TIMEOUT_MS = 1_000;

/**
 * Brings a created entry to running: ledger record, engine, guest API, ledger record with the runtime's identity. Every
 * effect has its undo on the entry's stack before it is attempted. Throws what failed and leaves the undoing to the caller.
 */
export type Launch = (entry: SandboxEntry, template: ReadyTemplate, signal: AbortSignal) => Promise<SandboxRecord>;

export function createLaunch(deps: LaunchDependencies): Launch {
  const { clock, config, keeper, table } = deps;

  async function staged<T>(
    entry: SandboxEntry,
    stage: string,
    signal: AbortSignal,
    work: () => Promise<T>,
  ): Promise<T> {
    entry.stage = stage;
    const timing = deps.stages.start('create_warm', stage);
    try {
      const result = await work();
      signal.throwIfAborted();
      timing.end('ok');
      return result;
    } catch (error) {
      timing.end(signal.aborted ? 'canceled' : 'error');
      throw error;
    }
  }

  function startEngine(entry: SandboxEntry, template: ReadyTemplate, signal: AbortSignal): Promise<RunningSandbox> {
    const { record } = entry;
    const engine = createEngineStart(clock, {
      timeoutMs: config.createTimeoutMs,
      graceMs: config.killGraceMs,
      signal,
    });
    entry.undo.push('engine', engine.stop);
    const plan: LaunchPlan = {
      sandboxId: record.id,
      instanceId: record.instanceId,
      templateId: record.templateId,
      resources: record.resources,
      network: record.network,
      channelKey: Uint8Array.fromHex(record.channelKey),
      hostname: record.id,
    };
    return engine.run((aborted) => deps.backend.restore(template.snapshot, plan, aborted));
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
    entry.undo.push('guest API', async () => {
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

  return async (entry, template, signal) => {
    await staged(entry, 'record', signal, async () => {
      entry.undo.push('ledger record', () => keeper.forget(entry.record.id));
      await keeper.write(entry.record, signal);
    });
    const running = await staged(entry, 'restore', signal, () => startEngine(entry, template, signal));
    void running.ended.then((end) => deps.onRuntimeEnded(entry, end));
    void running.agent.closed.then(({ kind }) => {
      if (kind !== 'closed') deps.owner.agentLost(entry.record.id, kind);
    });

    return await staged(entry, 'commit', signal, async () => {
      const envd = startEnvd(entry, running);
      const { timeoutSeconds } = entry.record;
      const ready: SandboxRecord = {
        ...entry.record,
        state: 'running',
        deadline: deadlineAfter(clock.now(), timeoutSeconds),
        runtime: running.identity,
      };
      await keeper.write(ready, signal);
      signal.throwIfAborted();
      table.update(entry, ready);
      const sampling = deps.samples.attach(ready.id, running.agent);
      entry.generation = { running, envd, sockets: createSocketGroup(), sampling };
      if (table.move(entry, 'ready') === undefined) {
        throw new PlatformError('internal', `a sandbox that is ${entry.record.state} cannot become ready`);
      }
      if (ready.deadline !== undefined) deps.deadlines.set(ready.id, ready.deadline);
      deps.owner.ready(ready.id, clock.now() - ready.createdAt);
      return entry.record;
    });
  };
}
