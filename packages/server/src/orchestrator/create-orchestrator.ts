import {
  type Admission,
  type CaptureKind,
  type Clock,
  createKeyedQueue,
  type Log,
  OPERATION_RULES,
  PlatformError,
  type Rng,
  type SandboxRecord,
  type SandboxState,
  type UuidSource,
} from '@agentenv/core';
import type { EnvdOptions, EnvdService } from '@agentenv/envd';
import type { Backend, RuntimeEnd } from '@agentenv/runtime';
import type { CaptureStore, Ledger, SnapshotRepository } from '@agentenv/storage';
import { answering } from '../hooks/failure.ts';
import type { SandboxHooks } from '../hooks/sandbox-hooks.ts';
import type { StageMetrics } from '../observability/metrics.ts';
import type { SandboxLogs } from '../observability/sandbox-logs.ts';
import type { SandboxMetrics } from '../observability/sandbox-metrics.ts';
import type { TemplateCatalogue } from '../templates/template-catalogue.ts';
import { takeOver } from './adoption.ts';
import { createAttachment } from './attachment.ts';
import { createAutoResume, isWakeable } from './auto-resume.ts';
import { createBackgroundWork } from './background-work.ts';
import type { OrchestratorConfig } from './config.ts';
import { createCreation } from './creation.ts';
import { createDeadlineChanges } from './deadline-changes.ts';
import { createDurableState } from './durable-state.ts';
import { createEnding, type EndCause } from './ending.ts';
import type { EventPublisher } from './event-publisher.ts';
import { createExpiry } from './expiry.ts';
import { createForking } from './forking.ts';
import { createHeldRelease } from './held-release.ts';
import type { HostCapacityProbe } from './host-capacity.ts';
import { createLaunch } from './launch.ts';
import type { LifecycleMetrics } from './lifecycle-metrics.ts';
import { createLiveCapture } from './live-capture.ts';
import { createNetworkChanges } from './network-changes.ts';
import type { Orchestrator } from './orchestrator.ts';
import { createOwnerLog } from './owner-log.ts';
import { createParamsPatching } from './params-patching.ts';
import { createPausing } from './pausing.ts';
import { createPlacement } from './placement.ts';
import { reconcileAtStart } from './reconcile.ts';
import { createRecordKeeper } from './record-keeper.ts';
import { requireDuration } from './requirements.ts';
import { createResuming } from './resuming.ts';
import { createSandboxAccess, sandboxNotFound, takesRequests } from './sandbox-access.ts';
import { type Allocation, createSandboxTable, type SandboxEntry } from './sandbox-table.ts';
import { createShutdown, shuttingDown } from './shutdown.ts';
import { createSnapshotting } from './snapshotting.ts';

/** The tokens of a sandbox, derived from the managed seed (agentenv.md section 14). */
export interface TokenSource {
  accessToken(sandboxId: string): string;
  trafficAccessToken(sandboxId: string): string;
}

export interface OrchestratorDependencies {
  readonly backend: Backend;
  readonly ledger: Ledger;
  readonly captures: CaptureStore;
  readonly snapshots: Pick<SnapshotRepository, 'captures' | 'begin' | 'publish'>;
  readonly templates: Omit<TemplateCatalogue, 'list'>;
  readonly hooks: SandboxHooks;
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
  readonly events: EventPublisher;
  /** Resolves when the events so far outlive this server, or cannot be made to. */
  readonly eventsRecorded: () => Promise<void>;
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
  /**
   * Ends it without touching what runs: for a server that cannot start, whose sandboxes are for the next one. What is under
   * way comes to its end first, for a bounded time. Disposing does nothing more then, and the other way round.
   */
  abandon(): Promise<void>;
}

const killedError = (): PlatformError => new PlatformError('killed', 'sandbox was killed');

/**
 * Starts the orchestrator of this host: cleans up after a former server first, then accepts operations. Rejects when the
 * ledger cannot be read or the backend cannot clean up.
 */
export async function createOrchestrator(deps: OrchestratorDependencies): Promise<OwnedOrchestrator> {
  const { backend, clock, config, log, metrics, templates, tokens } = deps;
  const partings = createBackgroundWork();
  const reconciled = await reconcileAtStart({
    backend,
    ledger: deps.ledger,
    captures: deps.captures,
    snapshots: deps.snapshots,
    hooks: deps.hooks,
    background: partings,
    async tellLost(lost) {
      const change = { type: 'sandbox.lifecycle.killed', reason: 'server-restarted', ranSince: undefined } as const;
      for (const record of lost) deps.events.publish(record, change);
      await deps.eventsRecorded();
    },
    clock,
    log,
    timeoutMs: config.reconcileTimeoutMs,
    ledgerTimeoutMs: config.ledgerTimeoutMs,
  });
  metrics.reconciled(reconciled.ended);
  metrics.adopted(reconciled.running.length);

  const keeper = createRecordKeeper({ ledger: deps.ledger, clock, log, timeoutMs: config.ledgerTimeoutMs });
  const owner = createOwnerLog(deps.logs);
  const queue = createKeyedQueue({
    clock,
    waitMs: config.stateWaitMs,
    graceMs: config.killGraceMs,
    maxWaiting: config.maxWaitingPerSandbox,
  });
  const deadlines = createExpiry({
    ...{ table: () => table, queue, clock, log, metrics, config, pause },
    end: (entry, cause) => endInBackground(entry, { event: 'kill', error: killedError(), ...cause }),
  });
  const table = createSandboxTable({
    clock,
    log,
    metrics,
    accessToken,
    deadlines: {
      creating: config.createTimeoutMs,
      pausing: config.captureTimeoutMs + 4 * config.releaseTimeoutMs,
      snapshotting: config.captureTimeoutMs + 4 * config.releaseTimeoutMs,
      forking: config.captureTimeoutMs + 4 * config.releaseTimeoutMs,
      resuming: config.resumeTimeoutMs + 4 * config.releaseTimeoutMs,
      killing: 4 * config.releaseTimeoutMs,
    },
    onOverdue,
  });
  const access = createSandboxAccess(table);
  const changeDeadline = createDeadlineChanges({ ...deps, table, access, queue, deadlines, keeper, owner });
  const changeNetwork = createNetworkChanges({ ...deps, table, access, queue, keeper, owner });
  const ending = createEnding({
    table,
    queue,
    deadlines,
    clock,
    log,
    owner,
    metrics,
    stages: deps.stages,
    events: deps.events,
    keeper,
    retryMs: config.releaseRetryMs,
    noteMs: config.killNoteTimeoutMs,
  });
  const attachment = createAttachment({ ...deps, accessToken, owner, onRuntimeEnded });
  const launch = createLaunch({
    backend,
    hooks: deps.hooks,
    keeper,
    table,
    deadlines,
    attachment,
    clock,
    stages: deps.stages,
    events: deps.events,
    config,
  });
  const { releaseTimeoutMs, releaseRetryMs } = config;
  const durable = createDurableState({ keeper, captures: deps.captures, clock, log, releaseTimeoutMs });
  const heldRelease = createHeldRelease({ clock, log, metrics, retryMs: releaseRetryMs });
  const placement = createPlacement({ ...deps, releaseTimeoutMs });
  const pausing = createPausing({ ...deps, owner, table, deadlines, keeper, durable, heldRelease, ending });
  const resuming = createResuming({ ...deps, owner, table, keeper, heldRelease, placement, launch });
  takeOver({ ...deps, table, durable, attachment, deadlines, owner, releaseTimeoutMs }, reconciled);
  const creation = createCreation({
    ...deps,
    placement,
    durable,
    owner,
    table,
    queue,
    ending,
    launch,
    refuseWhileClosing,
  });
  const liveCapture = createLiveCapture({ ...deps, table, access, queue, ending, owner });
  const forking = createForking({ ...deps, liveCapture, creation, refuseWhileClosing });
  const snapshotting = createSnapshotting({ ...deps, table, liveCapture, refuseWhileClosing });
  const patchParams = createParamsPatching({ ...deps, access, queue, keeper, table });
  const { pauseAll, settleAll } = createShutdown({
    ...{ table, queue, pausing, resuming, ending, clock, log, config },
    background: [forking, snapshotting, partings],
  });
  const wake = createAutoResume({
    ...{ access, resume },
    settled: (id) => queue.run(id, 'auto-resume', async () => undefined),
  });
  let closing: Promise<void> | undefined;

  function accessToken(record: SandboxRecord): string | undefined {
    return record.secure ? tokens.accessToken(record.id) : undefined;
  }

  /** The end of a sandbox that nobody waits for; a failure is logged and tried again where it happens. */
  async function endInBackground(entry: SandboxEntry, cause: EndCause): Promise<void> {
    await ending.end(entry, cause).catch(() => undefined);
  }

  function onRuntimeEnded(entry: SandboxEntry, end: RuntimeEnd): void {
    if (entry.ending !== undefined || table.get(entry.record.id) !== entry) return;
    // A step that captures or restores looks for itself: what is stored may make the engine's end harmless.
    if (entry.record.state !== 'creating' && entry.record.state !== 'running') return;
    const early = entry.record.state === 'creating';
    const error = early
      ? new PlatformError('create_failed', `the sandbox ended before it was ready: ${end.reason}`, {
          details: { ...end },
        })
      : sandboxNotFound(entry.record.id);
    void endInBackground(entry, { event: 'runtime-ended', reason: end.reason, detail: end.detail, error });
  }

  function onOverdue(entry: SandboxEntry): void {
    if (entry.record.state !== 'creating') return; // every step of the others has a deadline of its own
    const seconds = config.createTimeoutMs / 1000;
    const detail = `it was not ready within ${seconds} s (stage ${entry.stage})`;
    const error = new PlatformError('deadline_exceeded', `the sandbox was not ready within ${seconds} s`, {
      details: { stage: entry.stage },
    });
    void endInBackground(entry, { event: 'launch-failed', reason: 'overdue', detail, error });
  }

  function refuseWhileClosing(): void {
    if (closing !== undefined) throw shuttingDown();
  }

  async function pause(id: string, keeps: CaptureKind = 'full'): Promise<void> {
    refuseWhileClosing();
    access.allowed(id, 'pause');
    // Nobody may take the one for the other: who asked for memory would find it gone.
    const operation = keeps === 'full' ? 'pause' : 'pause without memory';
    await queue.join(id, operation, (signal) => pausing(access.allowed(id, 'pause'), keeps, signal));
  }

  /** `leader`: this call is the one that did it, the others shared its outcome. */
  async function resume(
    id: string,
    timeoutSeconds: number,
    from: CaptureKind = 'full',
  ): Promise<{ record: SandboxRecord; leader: boolean }> {
    access.allowed(id, 'resume');
    let leader = false;
    const record = await queue.join(id, 'resume', async (signal) => {
      leader = true;
      refuseWhileClosing();
      return await resuming.resume(access.allowed(id, 'resume'), { timeoutSeconds, from }, signal);
    });
    return { record, leader };
  }

  async function connect(
    id: string,
    seconds: number,
    from: CaptureKind = 'full',
  ): Promise<{ record: SandboxRecord; resumed: boolean }> {
    for (;;) {
      refuseWhileClosing();
      switch (OPERATION_RULES.connect[access.live(id).record.state]) {
        case 'resume':
        case 'join': {
          const { record, leader } = await resume(id, seconds, from);
          if (leader) return { record, resumed: true };
          break;
        }
        case 'allow': {
          const record = await changeDeadline(id, 'connect', 'ensure-minimum', seconds);
          if (record !== undefined) return { record, resumed: false };
          break;
        }
        default:
          // Until what is under way is done; then it is looked at again.
          await queue.run(id, 'connect', async () => undefined);
      }
    }
  }

  async function kill(id: string, detail: string): Promise<void> {
    const entry = table.get(id);
    if (entry === undefined) throw sandboxNotFound(id);
    await ending.end(entry, { event: 'kill', reason: 'deleted', detail, error: killedError() });
  }

  async function shutDown(leave: () => Promise<void>): Promise<void> {
    await leave();
    heldRelease[Symbol.dispose]();
    deadlines[Symbol.dispose]();
    ending[Symbol.dispose]();
    table[Symbol.dispose]();
    await keeper[Symbol.asyncDispose]();
  }

  return {
    create: (request) => answering('create', creation.create(request)),
    createCold: (request) => answering('create', creation.createCold(request)),
    async patchParams(id, patch) {
      refuseWhileClosing();
      return await patchParams(id, patch);
    },
    pause,
    async resume(id, timeoutSeconds, from) {
      refuseWhileClosing();
      requireDuration('timeout', timeoutSeconds);
      return (await answering('resume', resume(id, timeoutSeconds, from))).record;
    },
    async connect(id, timeoutSeconds, from) {
      refuseWhileClosing();
      requireDuration('timeout', timeoutSeconds);
      return await answering('connect', connect(id, timeoutSeconds, from));
    },
    async wake(id) {
      refuseWhileClosing();
      await answering('auto-resume', wake(id));
    },
    fork: (id, request) => forking.fork(id, request),
    snapshot: (id, name) => snapshotting.snapshot(id, name),
    deleteTemplate: (reference) => snapshotting.deleteTemplate(reference),
    get: (id) => access.visible(id).record,
    list(filter) {
      const { template, ...query } = filter;
      const templateId = template === undefined ? undefined : (templates.find(template)?.id ?? template);
      return table.page({ ...query, templateId });
    },
    async setTimeout(id, timeoutSeconds) {
      refuseWhileClosing();
      if (timeoutSeconds === 0) {
        access.allowed(id, 'timeout');
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
    async updateNetwork(id, egress) {
      refuseWhileClosing();
      await changeNetwork(id, egress);
    },
    kill,
    target(id) {
      const entry = table.get(id);
      if (entry === undefined || entry.record.state === 'killing') return { kind: 'not-found' };
      const { record, generation } = entry;
      if (isWakeable(record)) return { kind: 'asleep', record };
      if (generation === undefined || !takesRequests(record.state)) return { kind: 'not-proxyable' };
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
    abandon() {
      deadlines[Symbol.dispose]();
      closing ??= shutDown(settleAll);
      return closing;
    },
    [Symbol.asyncDispose]() {
      closing ??= shutDown(pauseAll);
      return closing;
    },
  };
}
