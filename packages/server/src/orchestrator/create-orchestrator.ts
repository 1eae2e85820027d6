import {
  type Admission,
  applyDeadlinePolicy,
  type Clock,
  callWithin,
  createDeadlineQueue,
  createKeyedQueue,
  type DeadlinePolicy,
  type Log,
  OPERATION_RULES,
  PlatformError,
  type Rng,
  type SandboxOperation,
  type SandboxRecord,
  type SandboxState,
  shorten,
  type UuidSource,
} from '@agentenv/core';
import type { EnvdOptions, EnvdService } from '@agentenv/envd';
import type { Backend, RuntimeEnd } from '@agentenv/runtime';
import type { Ledger } from '@agentenv/storage';
import type { StageMetrics } from '../observability/metrics.ts';
import type { SandboxLogs } from '../observability/sandbox-logs.ts';
import type { SandboxMetrics } from '../observability/sandbox-metrics.ts';
import type { TemplateRegistry } from '../templates/template-registry.ts';
import { mapBounded } from './bounded-map.ts';
import type { OrchestratorConfig } from './config.ts';
import { createCreation } from './creation.ts';
import { createEnding, type EndCause } from './ending.ts';
import type { HostCapacityProbe } from './host-capacity.ts';
import { createLaunch } from './launch.ts';
import type { LifecycleMetrics } from './lifecycle-metrics.ts';
import type { Orchestrator } from './orchestrator.ts';
import { createOwnerLog } from './owner-log.ts';
import { reconcileAtStart } from './reconcile.ts';
import { createRecordKeeper } from './record-keeper.ts';
import { requireDuration } from './requirements.ts';
import { type Allocation, createSandboxTable, type SandboxEntry } from './sandbox-table.ts';

/** The tokens of a sandbox, derived from the managed seed (agentenv.md section 14). */
export interface TokenSource {
  accessToken(sandboxId: string): string;
  trafficAccessToken(sandboxId: string): string;
}

export interface OrchestratorDependencies {
  readonly backend: Backend;
  readonly ledger: Ledger;
  readonly templates: Pick<TemplateRegistry, 'resolve' | 'find' | 'spawned'>;
  readonly createEnvd: (options: EnvdOptions) => EnvdService;
  readonly tokens: TokenSource;
  readonly admission: Admission;
  readonly hostCapacity: HostCapacityProbe;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly ids: UuidSource;
  readonly log: Log;
  /** What the owners of sandboxes get to read. */
  readonly logs: Pick<SandboxLogs, 'open' | 'append' | 'close'>;
  readonly samples: Pick<SandboxMetrics, 'attach'>;
  readonly stages: StageMetrics;
  readonly metrics: LifecycleMetrics;
  readonly config: OrchestratorConfig;
}

export interface OrchestratorStatus {
  readonly sandboxes: Readonly<Record<SandboxState, number>>;
  /** Of all but paused sandboxes. */
  readonly allocated: Allocation;
  readonly pausedAllocated: Allocation;
  readonly createSuccesses: number;
  readonly createFails: number;
}

/** The orchestrator of one server, with what observes it. */
export interface OwnedOrchestrator extends Orchestrator {
  status(): OrchestratorStatus;
}

/** How soon an expiry that met a busy sandbox looks again, milliseconds. */
const EXPIRY_RECHECK_MS = 50;

const killedError = (): PlatformError => new PlatformError('killed', 'sandbox was killed');
const shuttingDown = (): PlatformError =>
  new PlatformError('unavailable', 'the server is shutting down', { retryAfterSeconds: 5 });

const notFound = (id: string): PlatformError =>
  new PlatformError('not_found', `sandbox '${shorten(id, 64)}' not found`);

/**
 * Starts the orchestrator of this host: cleans up after a former server first, then accepts operations. Rejects when the
 * ledger cannot be read or the backend cannot clean up.
 */
export async function createOrchestrator(deps: OrchestratorDependencies): Promise<OwnedOrchestrator> {
  const { backend, clock, config, log, metrics, templates, tokens } = deps;
  const reconciled = await reconcileAtStart({
    backend,
    ledger: deps.ledger,
    clock,
    log,
    timeoutMs: config.reconcileTimeoutMs,
    ledgerTimeoutMs: config.ledgerTimeoutMs,
  });
  metrics.reconciled(reconciled);

  const keeper = createRecordKeeper({ ledger: deps.ledger, clock, log, timeoutMs: config.ledgerTimeoutMs });
  const owner = createOwnerLog(deps.logs);
  const queue = createKeyedQueue({
    clock,
    waitMs: config.stateWaitMs,
    graceMs: config.killGraceMs,
    maxWaiting: config.maxWaitingPerSandbox,
  });
  const deadlines = createDeadlineQueue({ clock, maxWaitMs: config.autoEvictIntervalMs }, expire);
  const table = createSandboxTable({
    clock,
    log,
    metrics,
    accessToken,
    deadlines: { creating: config.createTimeoutMs, killing: 4 * config.releaseTimeoutMs },
    onOverdue,
  });
  const ending = createEnding({
    table,
    queue,
    deadlines,
    clock,
    log,
    owner,
    metrics,
    stages: deps.stages,
    retryMs: config.releaseRetryMs,
  });
  const launch = createLaunch({
    backend,
    keeper,
    table,
    deadlines,
    createEnvd: deps.createEnvd,
    accessToken,
    clock,
    log,
    owner,
    samples: deps.samples,
    stages: deps.stages,
    config,
    onRuntimeEnded,
  });
  const creation = createCreation({
    ...deps,
    owner,
    table,
    queue,
    ending,
    launch,
    refuseWhileClosing,
  });
  let closing: Promise<void> | undefined;

  function accessToken(record: SandboxRecord): string | undefined {
    return record.secure ? tokens.accessToken(record.id) : undefined;
  }

  /** An entry that exists for clients: one that is being killed does not. */
  function live(id: string): SandboxEntry {
    const entry = table.get(id);
    if (entry === undefined || entry.record.state === 'killing') throw notFound(id);
    return entry;
  }

  /** The end of a sandbox that nobody waits for; a failure is logged and tried again where it happens. */
  function endInBackground(entry: SandboxEntry, cause: EndCause): void {
    ending.end(entry, cause).catch(() => undefined);
  }

  function expire(id: string): void {
    const entry = table.get(id);
    if (entry === undefined || entry.record.state === 'killing') return;
    if (entry.record.state !== 'running' || queue.current(id) !== undefined) {
      // A step that may change the deadline is under way: decide when it is done, never on a stale reading.
      deadlines.set(id, clock.now() + EXPIRY_RECHECK_MS);
      return;
    }
    if (entry.record.deadline !== undefined && entry.record.deadline > clock.now()) {
      deadlines.set(id, entry.record.deadline);
      return;
    }
    const detail = `its timeout of ${entry.record.timeoutSeconds} s passed`;
    endInBackground(entry, { event: 'kill', reason: 'expired', detail, error: killedError() });
  }

  function onRuntimeEnded(entry: SandboxEntry, end: RuntimeEnd): void {
    if (entry.ending !== undefined || table.get(entry.record.id) !== entry) return;
    const early = entry.record.state === 'creating';
    const error = early
      ? new PlatformError('create_failed', `the sandbox ended before it was ready: ${end.reason}`, {
          details: { ...end },
        })
      : notFound(entry.record.id);
    endInBackground(entry, { event: 'runtime-ended', reason: end.reason, detail: end.detail, error });
  }

  function onOverdue(entry: SandboxEntry): void {
    if (entry.record.state !== 'creating') return; // the release has deadlines of its own and is tried again
    const seconds = config.createTimeoutMs / 1000;
    const detail = `it was not ready within ${seconds} s (stage ${entry.stage})`;
    const error = new PlatformError('deadline_exceeded', `the sandbox was not ready within ${seconds} s`, {
      details: { stage: entry.stage },
    });
    endInBackground(entry, { event: 'launch-failed', reason: 'overdue', detail, error });
  }

  function refuseWhileClosing(): void {
    if (closing !== undefined) throw shuttingDown();
  }

  function requireAllowed(id: string, operation: SandboxOperation): SandboxEntry {
    const entry = live(id);
    const verdict = OPERATION_RULES[operation][entry.record.state];
    if (verdict === 'conflict') {
      throw new PlatformError('conflict', `sandbox '${entry.record.id}' is ${entry.record.state}`);
    }
    if (verdict === 'resume') {
      throw new PlatformError('not_implemented', `sandbox '${entry.record.id}' is paused; resuming is not built yet`);
    }
    return entry;
  }

  function changeDeadline(
    id: string,
    operation: SandboxOperation,
    policy: DeadlinePolicy,
    seconds: number,
  ): Promise<SandboxRecord> {
    requireAllowed(id, operation);
    return queue.run(id, operation, async (signal) => {
      const entry = requireAllowed(id, operation);
      const deadline = applyDeadlinePolicy(policy, entry.record.deadline, clock.now(), seconds);
      if (deadline === entry.record.deadline) return entry.record;
      const changed: SandboxRecord = { ...entry.record, deadline, timeoutSeconds: seconds };
      await keeper.write(changed, signal);
      signal.throwIfAborted();
      table.update(entry, changed);
      deadlines.set(id, deadline);
      owner.timeoutChanged(changed, operation);
      return entry.record;
    });
  }

  async function kill(id: string, detail: string): Promise<void> {
    const entry = table.get(id);
    if (entry === undefined) throw notFound(id);
    await ending.end(entry, { event: 'kill', reason: 'deleted', detail, error: killedError() });
  }

  async function shutDown(): Promise<void> {
    const entries = table.all();
    const cause: EndCause = {
      event: 'kill',
      reason: 'shutdown',
      detail: 'the server is shutting down',
      error: shuttingDown(),
    };
    try {
      await callWithin(
        clock,
        { what: 'the end of all sandboxes', timeoutMs: config.shutdownTimeoutMs, graceMs: 0 },
        () => mapBounded(entries, config.shutdownConcurrency, (entry) => ending.end(entry, cause)),
      );
    } catch (error) {
      log.error({ err: error }, 'the sandboxes did not end in time');
    }
    if (table.size > 0) {
      const ids = table.all().map((entry) => entry.record.id);
      log.error({ sandboxIds: ids }, 'sandboxes could not be ended; the next start cleans them up');
    }
    deadlines[Symbol.dispose]();
    ending[Symbol.dispose]();
    table[Symbol.dispose]();
    await keeper[Symbol.asyncDispose]();
  }

  return {
    create: (request) => creation.create(request),
    async connect(id, timeoutSeconds) {
      refuseWhileClosing();
      requireDuration('timeout', timeoutSeconds);
      return { record: await changeDeadline(id, 'connect', 'ensure-minimum', timeoutSeconds), resumed: false };
    },
    get: (id) => live(id).record,
    list(filter) {
      const { template, ...query } = filter;
      const templateId = template === undefined ? undefined : (templates.find(template)?.id ?? template);
      return table.page({ ...query, templateId });
    },
    async setTimeout(id, timeoutSeconds) {
      refuseWhileClosing();
      if (timeoutSeconds === 0) {
        live(id);
        await kill(id, 'its timeout was set to 0');
        return;
      }
      requireDuration('timeout', timeoutSeconds);
      await changeDeadline(id, 'timeout', 'set', timeoutSeconds);
    },
    async refresh(id, durationSeconds) {
      refuseWhileClosing();
      requireDuration('duration', durationSeconds);
      await changeDeadline(id, 'refresh', 'ensure-minimum', durationSeconds);
    },
    kill,
    target(id) {
      const entry = table.get(id);
      if (entry === undefined || entry.record.state === 'killing') return { kind: 'not-found' };
      const { record, generation } = entry;
      if (generation === undefined || record.state !== 'running') return { kind: 'not-proxyable' };
      const { envd, running, sockets } = generation;
      return { kind: 'ready', record, envd, agent: running.agent, sockets };
    },
    findByAccessToken: (token) => table.findByAccessToken(token)?.record.id,
    accessToken,
    trafficAccessToken: (record) =>
      record.network.allowPublicTraffic ? undefined : tokens.trafficAccessToken(record.id),
    status: () => ({
      sandboxes: table.countByState(),
      allocated: table.allocated((state) => state !== 'paused'),
      pausedAllocated: table.allocated((state) => state === 'paused'),
      ...creation.counts(),
    }),
    [Symbol.asyncDispose]() {
      closing ??= shutDown();
      return closing;
    },
  };
}
