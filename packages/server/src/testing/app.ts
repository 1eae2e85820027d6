import { type Clock, SANDBOX_STATES, type SandboxState } from '@agentenv/core';
import { createFakeClock, createRecordingLog, createSeededRandom, type RecordingLog } from '@agentenv/core/testing';
import type { TemplateRecord } from '@agentenv/storage';
import type { FastifyInstance } from 'fastify';
import { createApp } from '../api/app.ts';
import type { ListenerLimits } from '../api/http-server.ts';
import type { EventBus } from '../events/event-bus.ts';
import type { EventStreams } from '../events/event-stream.ts';
import type { HostUsageProbe } from '../observability/host-usage.ts';
import { createMetrics, type Metrics } from '../observability/metrics.ts';
import { createNodeReporter } from '../observability/node.ts';
import { createRequestContexts, type RequestContexts } from '../observability/request-context.ts';
import { createSandboxLogs, DEFAULT_SANDBOX_LOG_LIMITS, type SandboxLogs } from '../observability/sandbox-logs.ts';
import {
  createSandboxMetrics,
  DEFAULT_SANDBOX_METRICS_CONFIG,
  type SandboxMetrics,
} from '../observability/sandbox-metrics.ts';
import type { OrchestratorStatus } from '../orchestrator/create-orchestrator.ts';
import { createDataPlane, type IngressLimits } from '../proxy/data-plane.ts';
import { createTestEvents } from './events.ts';
import { createMemoryOrchestrator, type MemoryOrchestrator } from './memory-orchestrator.ts';

export const TEST_API_KEY = `e2b_${'0a'.repeat(20)}`;

export const TEST_TEMPLATE: TemplateRecord = {
  id: 'i0000000000000000base',
  buildId: '019b76da-a800-7000-8000-00000000000b',
  names: ['base'],
  vcpus: 2,
  memoryMB: 1024,
  diskSizeMB: 10_240,
  envdVersion: '0.6.13',
  createdAt: Date.UTC(2026, 0, 1),
  updatedAt: Date.UTC(2026, 0, 1),
  spawnCount: 3,
  lastSpawnedAt: undefined,
};

const TEST_HOST: HostUsageProbe = {
  machine: async () => ({ cpuFamily: '25', cpuModel: '1', cpuModelName: 'Test CPU', cpuArchitecture: 'x86_64' }),
  usage: async () => ({
    ...{ cpuPercent: 12.5, cpuCount: 8, memoryUsedBytes: 1_000_000_000, memoryTotalBytes: 16_000_000_000 },
    disks: [{ mountPoint: '/', device: '/dev/sda1', filesystemType: 'ext4', usedBytes: 1, totalBytes: 2 }],
  }),
};

/** One sandbox in every state. */
const TEST_STATUS: OrchestratorStatus = {
  sandboxes: Object.fromEntries(SANDBOX_STATES.map((state) => [state, 1])) as Record<SandboxState, number>,
  allocated: { vcpus: 14, memoryMB: 7168 },
  pausedAllocated: { vcpus: 2, memoryMB: 1024 },
  createSuccesses: 20,
  createFails: 3,
};

export interface TestApp extends AsyncDisposable {
  readonly app: FastifyInstance;
  readonly orchestrator: MemoryOrchestrator;
  readonly metrics: Metrics;
  readonly sandboxLogs: SandboxLogs;
  readonly sandboxMetrics: SandboxMetrics;
  readonly events: EventBus;
  readonly eventStreams: EventStreams;
  /** What it wrote to the log. */
  readonly log: RecordingLog;
  readonly contexts: RequestContexts;
  drain(): Promise<void>;
}

/** Who the host of a test says it is. */
export const TEST_NODE = {
  nodeId: 'test-host',
  clusterId: '00000000-0000-0000-0000-000000000001',
  serviceInstanceId: '019b76da-a800-7000-8000-00000000000d',
};

/** The HTTP front over records in memory. */
export async function createTestApp(
  options: {
    readonly domains?: readonly string[];
    /** One without builds is its own only one. */
    readonly templates?: readonly (TemplateRecord & { readonly builds?: readonly TemplateRecord[] })[];
    readonly clock?: Clock;
    readonly autoPause?: boolean;
    readonly isReady?: () => boolean;
    readonly observability?: 'on' | 'off';
    readonly listenerLimits?: ListenerLimits;
    readonly limits?: Partial<IngressLimits>;
  } = {},
): Promise<TestApp> {
  const clock = options.clock ?? createFakeClock();
  const orchestrator = createMemoryOrchestrator({ rng: createSeededRandom(1), now: () => clock.now() });
  const metrics = createMetrics();
  const templates = (options.templates ?? [TEST_TEMPLATE]).map((template) => ({ builds: [template], ...template }));
  const log = createRecordingLog();
  const contexts = createRequestContexts(createSeededRandom(2));
  const sandboxLogs = createSandboxLogs({ clock, limits: { ...DEFAULT_SANDBOX_LOG_LIMITS, retentionMs: 60_000 } });
  const sandboxMetrics = createSandboxMetrics({
    ...{ clock, log, config: { ...DEFAULT_SANDBOX_METRICS_CONFIG, firstLookMs: 0 } },
    onSample() {},
  });
  const { events, eventStreams } = createTestEvents({ clock, log, streamLimits: { readers: 4 } });
  const node = createNodeReporter({
    identity: TEST_NODE,
    build: { version: '1.2.3', commit: '' },
    host: TEST_HOST,
    status: () => TEST_STATUS,
  });
  const { app, drain } = await createApp({
    ...{ orchestrator, sandboxLogs, sandboxMetrics, eventStreams, contexts },
    ...(options.listenerLimits === undefined ? {} : { listenerLimits: options.listenerLimits }),
    snapshots: orchestrator.snapshots,
    installation: { team: 'default', node: options.observability === 'off' ? undefined : node },
    templates: {
      list: () => templates,
      find: (reference) => templates.find(({ id, names }) => id === reference || names.includes(reference)),
    },
    apiKey: TEST_API_KEY,
    timeouts: {
      defaultSeconds: 15,
      defaultV2Seconds: 300,
      maximumSeconds: 86_400,
      autoPause: options.autoPause ?? false,
    },
    isReady: options.isReady ?? (() => true),
    domain: options.domains?.[0],
    metrics: metrics.http,
    renderMetrics: metrics.render,
    dataPlane: createDataPlane({
      ...{ orchestrator, domains: options.domains ?? [], metrics: metrics.http, contexts, clock, log },
      apiKey: TEST_API_KEY,
      limits: { maxConnections: 16, idleTimeoutMs: 0, trustedProxies: [], ...options.limits },
    }),
    clock,
    log,
  });
  return {
    ...{ app, orchestrator, metrics, sandboxLogs, sandboxMetrics, events, eventStreams, log, contexts, drain },
    async [Symbol.asyncDispose]() {
      await eventStreams[Symbol.asyncDispose]();
      await app.close();
      sandboxMetrics[Symbol.dispose]();
      sandboxLogs[Symbol.dispose]();
    },
  };
}
