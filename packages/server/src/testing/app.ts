import { type Clock, SILENT_LOG } from '@agentenv/core';
import { createFakeClock, createSeededRandom } from '@agentenv/core/testing';
import type { TemplateRecord } from '@agentenv/storage';
import type { FastifyInstance } from 'fastify';
import { createApp } from '../api/app.ts';
import { createMetrics, type Metrics } from '../observability/metrics.ts';
import { createDataPlane, type IngressLimits } from '../proxy/data-plane.ts';
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

export interface TestApp extends AsyncDisposable {
  readonly app: FastifyInstance;
  readonly orchestrator: MemoryOrchestrator;
  readonly metrics: Metrics;
}

/** The HTTP front over records in memory. */
export async function createTestApp(
  options: {
    readonly domains?: readonly string[];
    readonly templates?: readonly TemplateRecord[];
    readonly clock?: Clock;
    readonly isReady?: () => boolean;
    readonly limits?: Partial<IngressLimits>;
  } = {},
): Promise<TestApp> {
  const clock = options.clock ?? createFakeClock();
  const orchestrator = createMemoryOrchestrator({ rng: createSeededRandom(1), now: () => clock.now() });
  const metrics = createMetrics();
  const templates = options.templates ?? [TEST_TEMPLATE];
  const { app } = await createApp({
    orchestrator,
    templates: {
      list: () => templates,
      find: (reference) => templates.find(({ id, names }) => id === reference || names.includes(reference)),
    },
    apiKey: TEST_API_KEY,
    timeouts: { defaultSeconds: 15, defaultV2Seconds: 300, maximumSeconds: 86_400 },
    isReady: options.isReady ?? (() => true),
    domain: options.domains?.[0],
    metrics: metrics.http,
    renderMetrics: metrics.render,
    dataPlane: createDataPlane({
      ...{ orchestrator, domains: options.domains ?? [], metrics: metrics.http, clock, log: SILENT_LOG },
      apiKey: TEST_API_KEY,
      limits: { maxConnections: 16, idleTimeoutMs: 0, trustedProxies: [], ...options.limits },
    }),
    clock,
    log: SILENT_LOG,
  });
  return { app, orchestrator, metrics, [Symbol.asyncDispose]: () => app.close() };
}
