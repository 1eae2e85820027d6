import {
  type AdmissionLimits,
  createAdmission,
  createUuidSource,
  DEFAULT_ADMISSION_LIMITS,
  DEFAULT_NETWORK_POLICY,
  type HostCapacity,
  type LifecycleChange,
  type SandboxRecord,
} from '@agentenv/core';
import {
  createFakeClock,
  createRecordingLog,
  createSeededRandom,
  type FakeClock,
  type RecordingLog,
} from '@agentenv/core/testing';
import type { EnvdOptions, EnvdService } from '@agentenv/envd';
import { type Backend, createFakeBackend, createFakeWorld, type FakeWorld } from '@agentenv/runtime';
import {
  type CaptureStore,
  DEFAULT_SNAPSHOT_REPOSITORY_CONFIG,
  openSnapshotRepository,
  type SnapshotRepository,
} from '@agentenv/storage';
import { createMemoryDisk, type MemoryDisk, openMemoryCaptures, openMemoryLedger } from '@agentenv/storage/testing';
import type { ExtensionClient } from '../hooks/extension-client.ts';
import { createSandboxHooks } from '../hooks/sandbox-hooks.ts';
import { createMetrics } from '../observability/metrics.ts';
import { createSandboxLogs, DEFAULT_SANDBOX_LOG_LIMITS, type SandboxLogs } from '../observability/sandbox-logs.ts';
import {
  createSandboxMetrics,
  DEFAULT_SANDBOX_METRICS_CONFIG,
  type SandboxMetrics,
} from '../observability/sandbox-metrics.ts';
import { DEFAULT_ORCHESTRATOR_CONFIG, type OrchestratorConfig } from '../orchestrator/config.ts';
import { createOrchestrator, type OwnedOrchestrator } from '../orchestrator/create-orchestrator.ts';
import type { LifecycleMetrics } from '../orchestrator/lifecycle-metrics.ts';
import type { CreateSandbox, ListFilter } from '../orchestrator/orchestrator.ts';
import { deriveAccessToken, deriveTrafficAccessToken } from '../secrets/tokens.ts';
import { createTemplateCatalogue, type TemplateCatalogue } from '../templates/template-catalogue.ts';
import {
  createTemplateRegistry,
  DEFAULT_TEMPLATE_REGISTRY_CONFIG,
  type TemplateRegistry,
} from '../templates/template-registry.ts';
import { interceptLedger, type LedgerIntercept } from './intercepted-ledger.ts';

export const CREATE_BASE: CreateSandbox = {
  template: 'base',
  timeoutSeconds: 300,
  onTimeout: 'kill',
  timeoutKeeps: 'full',
  autoResume: false,
  secure: true,
  network: DEFAULT_NETWORK_POLICY,
  metadata: {},
  envVars: {},
  customExtensionParams: undefined,
};

export const LIST_ALL: ListFilter = {
  states: ['running', 'paused'],
  metadata: new Map(),
  startedAfter: undefined,
  template: undefined,
  order: 'desc',
  limit: 100,
  nextToken: undefined,
};

export const LARGE_HOST: HostCapacity = { totalMemoryMB: 24_000, availableMemoryMB: 22_000, freeDiskMB: 200_000 };

export interface HarnessOptions {
  /** Of a host that outlives this server; a new one unless given. */
  readonly world?: FakeWorld;
  readonly disk?: MemoryDisk;
  readonly clock?: FakeClock;
  readonly intercept?: LedgerIntercept;
  readonly createEnvd?: (options: EnvdOptions) => EnvdService;
  /** What this build of the backend calls itself. */
  readonly fingerprint?: Readonly<Record<string, string>>;
  readonly wrapBackend?: (backend: Backend) => Backend;
  readonly wrapCaptures?: (captures: CaptureStore) => CaptureStore;
  readonly extension?: ExtensionClient;
  readonly limits?: Partial<AdmissionLimits>;
  readonly hostCapacity?: () => Promise<HostCapacity>;
  readonly config?: Partial<OrchestratorConfig>;
  readonly seed?: number;
  readonly eventsRecorded?: () => Promise<void>;
  /** How long the logs of ended sandboxes are kept; not at all unless given. */
  readonly logRetentionMs?: number;
}

export type PublishedEvent = LifecycleChange & { readonly sandbox: SandboxRecord };

export interface LifecycleHarness {
  readonly orchestrator: OwnedOrchestrator;
  readonly templates: TemplateCatalogue;
  readonly registry: TemplateRegistry;
  readonly snapshots: SnapshotRepository;
  readonly admission: ReturnType<typeof createAdmission>;
  readonly world: FakeWorld;
  readonly disk: MemoryDisk;
  readonly clock: FakeClock;
  readonly log: RecordingLog;
  readonly sandboxLogs: SandboxLogs;
  readonly sandboxMetrics: SandboxMetrics;
  /** Calls of the life-cycle metrics, as `name` or `name:label`. */
  readonly counted: string[];
  /** Lifecycle events, in order. */
  readonly events: PublishedEvent[];
  /** Ends of guest API services, in order. */
  readonly envdEnds: string[];
  /** Runs ready work until `condition` holds, without moving the clock; fails after many turns. */
  until(condition: () => boolean): Promise<void>;
  /** Records on disk. */
  stored(): readonly SandboxRecord[];
  /** What is left of sandboxes in the table, on the host, on disk and in admission; empty when clean. */
  leftovers(): Readonly<Record<string, number>>;
  /** Timers that are still set after the spawn counts of templates were written, one second later. */
  timersLeft(): Promise<number>;
}

const TEST_SEED = 'test-seed';

function recordMetrics(counted: string[]): LifecycleMetrics {
  return {
    createSucceeded: () => counted.push('createSucceeded'),
    createFailed: (code) => counted.push(`createFailed:${code}`),
    pauseSucceeded: () => counted.push('pauseSucceeded'),
    pauseFailed: (code) => counted.push(`pauseFailed:${code}`),
    resumeSucceeded: () => counted.push('resumeSucceeded'),
    resumeFailed: (code) => counted.push(`resumeFailed:${code}`),
    liveCaptureSucceeded: (operation) => counted.push(`${operation}Captured`),
    liveCaptureFailed: (operation, code) => counted.push(`${operation}CaptureFailed:${code}`),
    autoPauseGivenUp: () => counted.push('autoPauseGivenUp'),
    ended: (reason) => counted.push(`ended:${reason}`),
    overdue: (state) => counted.push(`overdue:${state}`),
    releaseFailed: (step) => counted.push(`releaseFailed:${step}`),
    reconciled: (count) => counted.push(`reconciled:${count}`),
    adopted(count) {
      if (count > 0) counted.push(`adopted:${count}`);
    },
  };
}

/** One server's life cycle on a fake host: everything real but the engines, the disk and the time. */
export async function startLifecycle(options: HarnessOptions = {}): Promise<LifecycleHarness> {
  const clock = options.clock ?? createFakeClock();
  const world = options.world ?? createFakeWorld({ clock });
  const disk = options.disk ?? createMemoryDisk();
  const log = createRecordingLog();
  const counted: string[] = [];
  const events: PublishedEvent[] = [];
  const envdEnds: string[] = [];
  const memory = openMemoryLedger({ disk, log });
  const ledger = options.intercept === undefined ? memory : interceptLedger(memory, options.intercept);
  const { fingerprint } = options;
  const fake = createFakeBackend({ world, ...(fingerprint === undefined ? {} : { fingerprint }) });
  const backend = options.wrapBackend?.(fake) ?? fake;
  const kept = openMemoryCaptures({ disk, files: world.artifacts });
  const captures = options.wrapCaptures?.(kept) ?? kept;
  const rng = createSeededRandom(options.seed ?? 1);
  const ids = createUuidSource({ clock, rng });
  const { stages } = createMetrics();
  const admission = createAdmission({ ...DEFAULT_ADMISSION_LIMITS, ...options.limits });
  const config: OrchestratorConfig = { ...DEFAULT_ORCHESTRATOR_CONFIG, envdVersion: '0.6.13', ...options.config };
  const registry = createTemplateRegistry({
    backend,
    ledger,
    clock,
    rng,
    ids,
    log,
    stages,
    sources: [
      {
        name: 'base',
        rootfs: { path: '/fake/base', digest: 'ba5e'.repeat(16) },
        resources: { vcpus: 2, memoryMB: 1024, diskSizeMB: 10_240 },
      },
    ],
    namespace: 'default',
    envdVersion: '0.6.13',
    config: DEFAULT_TEMPLATE_REGISTRY_CONFIG,
  });
  const snapshots = await openSnapshotRepository({
    ...{ ledger, captures, clock, rng, ids, log, namespace: 'default' },
    config: DEFAULT_SNAPSHOT_REPOSITORY_CONFIG,
  });
  const templates = createTemplateCatalogue({ registry, snapshots, backend });
  const sandboxLogs = createSandboxLogs({
    clock,
    limits: { ...DEFAULT_SANDBOX_LOG_LIMITS, retentionMs: options.logRetentionMs ?? 0 },
  });
  const sandboxMetrics = createSandboxMetrics({
    ...{ clock, log, config: { ...DEFAULT_SANDBOX_METRICS_CONFIG, firstLookMs: 0 } },
    onSample() {},
  });
  const orchestrator = await createOrchestrator({
    backend,
    ledger,
    captures,
    snapshots,
    templates,
    hooks: createSandboxHooks({ client: options.extension, log }),
    createEnvd:
      options.createEnvd ??
      ((envd) => ({
        handle() {},
        async [Symbol.asyncDispose]() {
          envdEnds.push(envd.sandboxId);
        },
      })),
    tokens: {
      accessToken: (id) => deriveAccessToken(TEST_SEED, id),
      trafficAccessToken: (id) => deriveTrafficAccessToken(TEST_SEED, id),
    },
    admission,
    hostCapacity: options.hostCapacity ?? (async () => LARGE_HOST),
    clock,
    rng,
    ids,
    log,
    logs: sandboxLogs,
    samples: sandboxMetrics,
    events: { publish: (sandbox, change) => events.push({ ...change, sandbox }) },
    eventsRecorded: options.eventsRecorded ?? (async () => undefined),
    stages,
    metrics: recordMetrics(counted),
    config,
  });
  await registry.start();

  return {
    orchestrator,
    templates,
    registry,
    snapshots,
    admission,
    world,
    disk,
    clock,
    log,
    sandboxLogs,
    sandboxMetrics,
    counted,
    events,
    envdEnds,
    async until(condition) {
      for (let turn = 0; !condition(); turn++) {
        if (turn === 1_000) throw new Error('the condition never came true');
        await clock.advance(0);
      }
    },
    stored: () => [...disk.sandboxes.values()].map((json) => JSON.parse(json) as SandboxRecord),
    leftovers() {
      const left = {
        machines: world.machines.size,
        records: disk.sandboxes.size,
        captures: [...disk.captures].filter((name) => !disk.snapshots.has(name)).length,
        listed: orchestrator.list(LIST_ALL).sandboxes.length,
        sandboxes: Object.values(orchestrator.status().sandboxes).reduce((sum, count) => sum + count, 0),
        places: admission.status().sandboxes,
        committedMemoryMB: admission.status().committedMemoryMB,
      };
      return Object.fromEntries(Object.entries(left).filter(([, count]) => count !== 0));
    },
    async timersLeft() {
      await clock.advance(1_000);
      return clock.pendingTimers;
    },
  };
}
