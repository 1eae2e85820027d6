import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createAdmission, createUuidSource, DEFAULT_ADMISSION_LIMITS, type Resources } from '@agentenv/core';
import { createRealClock, createRecordingLog, createSeededRandom } from '@agentenv/core/testing';
import { HEADERS } from '@agentenv/protocol';
import type { Backend, RootFilesystem } from '@agentenv/runtime';
import { DEFAULT_SNAPSHOT_REPOSITORY_CONFIG, openCaptureStore, openSnapshotRepository } from '@agentenv/storage';
import { createMemoryDisk, type MemoryDisk, openMemoryLedger } from '@agentenv/storage/testing';
import { createApp } from '../api/app.ts';
import { CONFIG_SCHEMA } from '../config/schema.ts';
import { createExtensionClient } from '../hooks/extension-client.ts';
import { createSandboxHooks } from '../hooks/sandbox-hooks.ts';
import { createLifecycleCounters } from '../observability/lifecycle-counters.ts';
import { createMetrics } from '../observability/metrics.ts';
import { createRequestContexts } from '../observability/request-context.ts';
import { createSandboxLogs, DEFAULT_SANDBOX_LOG_LIMITS } from '../observability/sandbox-logs.ts';
import { createSandboxMetrics, DEFAULT_SANDBOX_METRICS_CONFIG } from '../observability/sandbox-metrics.ts';
import { DEFAULT_ORCHESTRATOR_CONFIG } from '../orchestrator/config.ts';
import { createOrchestrator, type OwnedOrchestrator } from '../orchestrator/create-orchestrator.ts';
import { createDataPlane } from '../proxy/data-plane.ts';
import { createTemplateCatalogue } from '../templates/template-catalogue.ts';
import { createTemplateRegistry, DEFAULT_TEMPLATE_REGISTRY_CONFIG } from '../templates/template-registry.ts';
import { createTestEvents } from './events.ts';
import { send } from './http-client.ts';
import { LARGE_HOST } from './lifecycle-harness.ts';

/** A host with one kind of backend, for suites that run on every one. */
export interface HookHost extends AsyncDisposable {
  /** A backend as a server that starts would make it. */
  open(): Backend;
  readonly rootfs: RootFilesystem;
  readonly resources: Resources;
  slotsInUse(): number;
}

export interface HookServerOptions {
  readonly host: HookHost;
  /** As an operator writes it in the configuration; undefined: none. */
  readonly extensionUrl: string | undefined;
  readonly timeoutMs: number;
  /** Changes what the backend does; unless given it is the one of the host. */
  readonly backend?: (backend: Backend) => Backend;
  /** What outlives a server; a new one unless given. */
  readonly home?: HookHome;
}

/** What is durable: the ledger's disk and a directory of captures. */
export interface HookHome extends AsyncDisposable {
  readonly disk: MemoryDisk;
  readonly captures: string;
}

export async function createHookHome(): Promise<HookHome> {
  const captures = await mkdtemp(join(tmpdir(), 'aenv-hooks-'));
  return {
    disk: createMemoryDisk(),
    captures,
    [Symbol.asyncDispose]: () => rm(captures, { recursive: true, force: true }),
  };
}

export interface ApiAnswer {
  readonly status: number;
  readonly body: unknown;
}

/** A whole server on a host. */
export interface HookServer extends AsyncDisposable {
  readonly orchestrator: OwnedOrchestrator;
  readonly log: ReturnType<typeof createRecordingLog>;
  readonly home: HookHome;
  readonly backend: Backend;
  api(method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE', path: string, body?: unknown): Promise<ApiAnswer>;
  /** A request to a port of a sandbox, by the headers of one family of clients. */
  visit(id: string, family: 'e2b' | 'agentenv'): Promise<{ readonly status: number; readonly text: string }>;
}

/** The port of `visit`; nobody listens there. */
const VISITED_PORT = '3000';
const ROUTING_HEADERS = {
  e2b: [HEADERS.e2bSandboxId, HEADERS.e2bSandboxPort],
  agentenv: [HEADERS.agentenvSandboxId, HEADERS.agentenvTargetPort],
} as const;

/** On a busy host the first boot of an emulated guest takes longer than a client would wait. */
const TEMPLATES = { ...DEFAULT_TEMPLATE_REGISTRY_CONFIG, waitMs: DEFAULT_TEMPLATE_REGISTRY_CONFIG.prepareTimeoutMs };
const API_KEY = `e2b_${'0b'.repeat(20)}`;

/** Starts one; disposing shuts it down in good order, with its backend. */
export async function startHookServer(options: HookServerOptions): Promise<HookServer> {
  const { host } = options;
  await using undo = new AsyncDisposableStack();
  const home = options.home ?? undo.use(await createHookHome());
  const clock = createRealClock();
  const log = createRecordingLog();
  const rng = { bytes: (length: number) => randomBytes(length) };
  const ids = createUuidSource({ clock, rng });
  const metrics = createMetrics();
  const own = undo.use(host.open());
  const backend = options.backend?.(own) ?? own;
  const ledger = openMemoryLedger({ disk: home.disk, log });
  const captures = await openCaptureStore({ root: home.captures });
  const registry = undo.use(
    createTemplateRegistry({
      ...{ backend, ledger, clock, rng, ids, log, stages: metrics.stages },
      sources: [{ name: 'base', rootfs: host.rootfs, resources: host.resources }],
      ...{ namespace: 'default', envdVersion: '0.6.13', config: TEMPLATES },
    }),
  );
  const snapshots = await openSnapshotRepository({
    ...{ ledger, captures, clock, rng, ids, log, namespace: 'default' },
    config: DEFAULT_SNAPSHOT_REPOSITORY_CONFIG,
  });
  const templates = createTemplateCatalogue({ registry, snapshots, backend });
  const sandboxLogs = createSandboxLogs({ clock, limits: { ...DEFAULT_SANDBOX_LOG_LIMITS, retentionMs: 0 } });
  const sandboxMetrics = createSandboxMetrics({
    ...{ clock, log, config: { ...DEFAULT_SANDBOX_METRICS_CONFIG, firstLookMs: 0 } },
    onSample() {},
  });
  undo.defer(() => {
    sandboxMetrics[Symbol.dispose]();
    sandboxLogs[Symbol.dispose]();
  });
  const url = CONFIG_SCHEMA['custom_extension.url'].kind.parse(options.extensionUrl ?? '');
  const { timeoutMs } = options;
  const { events, eventStreams } = createTestEvents({ clock, log });
  undo.use(eventStreams);
  const orchestrator = undo.use(
    await createOrchestrator({
      ...{ backend, ledger, captures, snapshots, templates, clock, rng, ids, log, stages: metrics.stages },
      ...{ logs: sandboxLogs, samples: sandboxMetrics, events, eventsRecorded: async () => undefined },
      hooks: createSandboxHooks({
        client: url === undefined || url === '' ? undefined : createExtensionClient({ url, timeoutMs, clock }),
        log,
      }),
      createEnvd: () => ({ handle() {}, async [Symbol.asyncDispose]() {} }),
      tokens: { accessToken: (id) => `access-${id}`, trafficAccessToken: (id) => `traffic-${id}` },
      admission: createAdmission(DEFAULT_ADMISSION_LIMITS),
      hostCapacity: async () => LARGE_HOST,
      metrics: createLifecycleCounters(metrics.registry),
      config: { ...DEFAULT_ORCHESTRATOR_CONFIG, envdVersion: '0.6.13' },
    }),
  );
  await registry.start();
  await registry.resolve('base');
  const contexts = createRequestContexts(createSeededRandom(3));
  const { app } = await createApp({
    ...{ orchestrator, templates, snapshots, sandboxLogs, sandboxMetrics, eventStreams, contexts, clock, log },
    installation: { team: 'default', node: undefined },
    ...{ apiKey: API_KEY, isReady: () => true, domain: undefined },
    timeouts: { defaultSeconds: 60, defaultV2Seconds: 300, maximumSeconds: 86_400, autoPause: false },
    ...{ metrics: metrics.http, renderMetrics: metrics.render },
    dataPlane: createDataPlane({
      ...{ orchestrator, domains: [], metrics: metrics.http, contexts, clock, log, apiKey: API_KEY },
      limits: { maxConnections: 16, idleTimeoutMs: 0, trustedProxies: [] },
    }),
  });
  undo.defer(() => app.close());
  await app.listen({ host: '127.0.0.1', port: 0 });
  const { port } = app.server.address() as AddressInfo;
  const everything = undo.move();
  return {
    ...{ orchestrator, log, home, backend },
    async api(method, path, body) {
      const response = await app.inject({
        ...{ method, url: path, headers: { 'x-api-key': API_KEY } },
        ...(body === undefined ? {} : { payload: body as object }),
      });
      return { status: response.statusCode, body: response.body === '' ? undefined : response.json() };
    },
    async visit(id, family) {
      const [sandbox, target] = ROUTING_HEADERS[family];
      const { status, body } = await send(port, '/', { headers: { [sandbox]: id, [target]: VISITED_PORT } });
      return { status, text: body.toString() };
    },
    [Symbol.asyncDispose]: () => everything.disposeAsync(),
  };
}
