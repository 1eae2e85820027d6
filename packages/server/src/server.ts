import type { Server } from 'node:http';
import { hostname } from 'node:os';
import { join } from 'node:path';
import {
  type Clock,
  callWithin,
  createAdmission,
  createUuidSource,
  DEFAULT_ADMISSION_LIMITS,
  type Log,
  type Rng,
  type SandboxRecord,
  type UuidSource,
} from '@agentenv/core';
import { createEnvd } from '@agentenv/envd';
import { ENVD_VERSION } from '@agentenv/protocol';
import {
  DEFAULT_SNAPSHOT_REPOSITORY_CONFIG,
  openCaptureStore,
  openLedger,
  openSnapshotRepository,
} from '@agentenv/storage';
import type { FastifyInstance } from 'fastify';
import { type ControlPlane, createApp } from './api/app.ts';
import { splitAddress } from './config/load.ts';
import type { Config } from './config/schema.ts';
import { claimHome, claimRuntime } from './directory-lock.ts';
import { createEventBus, DEFAULT_EVENT_BUS_LIMITS } from './events/event-bus.ts';
import { createEventMetrics } from './events/event-metrics.ts';
import { createEventStreams, DEFAULT_EVENT_STREAM_LIMITS } from './events/event-stream.ts';
import { openWebhooks, type WebhookTarget } from './events/webhooks.ts';
import { createExtensionClient } from './hooks/extension-client.ts';
import { createSandboxHooks, type SandboxHooks } from './hooks/sandbox-hooks.ts';
import { openHostBackend } from './host-backend.ts';
import { cannotListen, requireFree } from './listen-address.ts';
import type { Build } from './observability/build.ts';
import { registerHostGauges } from './observability/host-gauges.ts';
import { createHostUsageProbe } from './observability/host-usage.ts';
import { createLifecycleCounters } from './observability/lifecycle-counters.ts';
import { createMetrics } from './observability/metrics.ts';
import { createNodeReporter, type NodeReporter } from './observability/node.ts';
import { createObservation } from './observability/observation.ts';
import type { RequestContexts } from './observability/request-context.ts';
import { DEFAULT_ORCHESTRATOR_CONFIG } from './orchestrator/config.ts';
import { createOrchestrator, type OwnedOrchestrator } from './orchestrator/create-orchestrator.ts';
import { createHostCapacityProbe } from './orchestrator/host-capacity.ts';
import { createDataPlane } from './proxy/data-plane.ts';
import { requireLedger } from './require-ledger.ts';
import { type ApiKey, loadApiKey } from './secrets/api-key.ts';
import { loadTokenSeed } from './secrets/seed.ts';
import { deriveAccessToken, deriveTrafficAccessToken } from './secrets/tokens.ts';
import { createTemplateCatalogue } from './templates/template-catalogue.ts';
import {
  createTemplateRegistry,
  DEFAULT_TEMPLATE_REGISTRY_CONFIG,
  type TemplateRegistry,
} from './templates/template-registry.ts';
import { type CertificateFiles, requireCertificates } from './tls/certificates.ts';
import { openSecureListener, type SecureListener } from './tls/secure-listener.ts';

/** The template without which a server is of no use. */
const ESSENTIAL_TEMPLATE = 'base';

export interface ServerOptions {
  readonly config: Config;
  /** Value of `AENV_API_KEY`. */
  readonly apiKey: string | undefined;
  readonly uid: number;
  /** Its timers run outside of requests, see `outsideRequests`. */
  readonly clock: Clock;
  readonly rng: Rng;
  readonly log: Log;
  readonly contexts: RequestContexts;
  readonly build: Build;
  /** Aborts the start. */
  readonly signal: AbortSignal;
  /** Aborts the wait for requests under way when the server ends. */
  readonly hurry: AbortSignal;
}

/** A server that takes requests. Disposing pauses every sandbox that runs and leaves nothing else behind. */
export interface RunningServer extends AsyncDisposable {
  /** Where it listens, with a host a client on this machine can use. */
  readonly url: string;
  /** Where the API key can be found, never the key. */
  readonly apiKeySource: string;
}

/**
 * Makes everything a server consists of, in the order in which it can be unmade: what a former server left is cleaned
 * up before requests are taken, and `/health` answers 204 once sandboxes can be created. A start that fails leaves
 * what ran to the next one, however far it came, and nothing else behind; one that is told to end pauses it.
 */
export async function startServer(options: ServerOptions): Promise<RunningServer> {
  const { config, clock, rng, log, signal } = options;
  await using undo = new AsyncDisposableStack();
  undo.use(await claimHome(config.home_path));
  undo.use(await claimRuntime(config.runtime_path));
  // Before anything is touched: the most common of mistakes.
  for (const key of ['api_addr', 'tls.addr'] as const) {
    const address = config[key];
    if (address !== undefined) await requireFree(key, address);
  }
  await requireCertificates(certificateFiles(config));
  const secrets = { homePath: config.home_path, uid: options.uid, rng };
  const apiKey = await loadApiKey({ ...secrets, environment: options.apiKey, mountedFile: '/run/secrets/api-key' });
  const captures = await openCaptureStore({ root: join(config.home_path, 'snapshots') });
  const ledgerPath = join(config.home_path, 'ledger.sqlite');
  await requireLedger(ledgerPath, captures);
  const ledger = undo.use(await openLedger({ path: ledgerPath, log }));
  const seed = await loadTokenSeed({
    ...secrets,
    configured: config['sandbox.access_token_hash_seed'],
    existingTokens: hasTokens((await ledger.loadSandboxes()).records),
  });
  signal.throwIfAborted();

  const metrics = createMetrics();
  const ids = createUuidSource({ clock, rng });
  const host = undo.use(await openHostBackend(options));
  signal.throwIfAborted();
  const snapshots = undo.use(
    await openSnapshotRepository({
      ...{ ledger, captures, clock, rng, ids, log },
      namespace: config['team.slug'],
      config: DEFAULT_SNAPSHOT_REPOSITORY_CONFIG,
    }),
  );
  const registry = undo.use(
    createTemplateRegistry({
      ...{ backend: host.backend, ledger, clock, rng, ids, log, stages: metrics.stages },
      sources: host.templates,
      namespace: config['team.slug'],
      envdVersion: ENVD_VERSION,
      config: DEFAULT_TEMPLATE_REGISTRY_CONFIG,
    }),
  );
  const templates = createTemplateCatalogue({ registry, snapshots, backend: host.backend });
  const observation = undo.use(createObservation({ config, clock, log, registry: metrics.registry }));
  const eventMetrics = createEventMetrics(metrics.registry);
  const events = createEventBus({
    ...{ clock, ids, log, teamId: config['team.slug'], limits: DEFAULT_EVENT_BUS_LIMITS },
    onPublished: eventMetrics.published,
  });
  const webhooks = undo.use(
    await openWebhooks({
      ...{ targets: webhookTargets(config), types: config['webhooks.events'], bus: events, clock, rng, ids, log },
      directory: join(config.home_path, 'webhooks'),
      timeoutMs: config['webhooks.timeout_ms'],
      attempts: config['webhooks.max_attempts'],
      metrics: eventMetrics.webhooks,
    }),
  );
  const eventStreams = undo.use(
    createEventStreams({
      ...{ bus: events, clock, limits: DEFAULT_EVENT_STREAM_LIMITS },
      onCutOff: eventMetrics.cutOff,
    }),
  );
  eventMetrics.watchReaders(() => eventStreams.readers);
  const orchestrator = undo.use(
    await createOrchestrator({
      ...{
        backend: host.backend,
        ledger,
        captures,
        snapshots,
        templates,
        createEnvd,
        clock,
        rng,
        ids,
        log,
        stages: metrics.stages,
        events,
        eventsRecorded: () => webhooks.recorded(),
      },
      ...{ logs: observation.sandboxLogs, samples: observation.sandboxMetrics, hooks: openHooks(options) },
      tokens: {
        accessToken: (id) => deriveAccessToken(seed, id),
        trafficAccessToken: (id) => deriveTrafficAccessToken(seed, id),
      },
      admission: createAdmission({
        ...DEFAULT_ADMISSION_LIMITS,
        memoryCommitRatio: config['orchestrator.memory_commit_ratio'],
        diskCommitRatio: config['orchestrator.disk_commit_ratio'],
        maxSandboxes: config['orchestrator.max_sandboxes'],
      }),
      hostCapacity: createHostCapacityProbe(config.home_path),
      metrics: createLifecycleCounters(metrics.registry),
      config: {
        ...orchestratorTimes(config),
        envdVersion: ENVD_VERSION,
        autoEvictIntervalMs: config['orchestrator.auto_evict_interval_ms'],
        pauseFailure: config['orchestrator.pause_failure'],
      },
    }).catch(async (error: unknown) => {
      // What it may have adopted is not lost with this attempt to start.
      await host.abandon();
      throw error;
    }),
  );
  let ready = false;
  const end = async (): Promise<void> => {
    if (ready || signal.aborted) {
      await orchestrator[Symbol.asyncDispose]();
      return;
    }
    await orchestrator.abandon();
    await host.abandon();
  };
  undo.defer(end);
  undo.use(
    registerHostGauges(metrics.registry, {
      sandboxes: () => orchestrator.status().sandboxes,
      pool: () => host.backend.status().pool,
      engines: () => host.backend.status().engines,
      slots: () => host.slots(),
    }),
  );
  await registry.start();
  signal.throwIfAborted();

  const front = await createApp({
    ...{ orchestrator, templates, snapshots, ...observation, eventStreams, clock, log },
    contexts: options.contexts,
    installation: {
      team: config['team.slug'],
      node: config['observability.enabled'] ? nodeReporter(options, orchestrator, ids) : undefined,
    },
    apiKey: apiKey.value,
    isReady: () => ready,
    timeouts: {
      defaultSeconds: config['orchestrator.default_sandbox_timeout_secs'],
      defaultV2Seconds: config['orchestrator.default_sandbox_timeout_v2_secs'],
      maximumSeconds: config['orchestrator.max_sandbox_timeout_secs'],
      autoPause: config['orchestrator.default_auto_pause'],
    },
    domain: config['sandbox_proxy.domains'][0],
    metrics: metrics.http,
    renderMetrics: metrics.render,
    dataPlane: createDataPlane({
      ...{ orchestrator, clock, log, contexts: options.contexts, apiKey: apiKey.value, metrics: metrics.http },
      domains: config['sandbox_proxy.domains'],
      limits: {
        maxConnections: config['sandbox_proxy.max_connections'],
        idleTimeoutMs: config['sandbox_proxy.idle_timeout_secs'] * 1000,
        trustedProxies: config['sandbox_proxy.trusted_proxies'],
      },
    }),
  });
  let secure: SecureListener | undefined;
  undo.defer(async () => {
    // No new requests of the control plane; those under way may end; then the sandboxes, and with them their streams.
    // The listener stays to the end: it says that the server is going, and that sandboxes are gone.
    await drain(front, options);
    await end();
    await eventStreams[Symbol.asyncDispose]();
    await secure?.[Symbol.asyncDispose]();
    const closed = front.app.close();
    front.app.server.closeAllConnections();
    await closed;
  });
  const url = await listen(front.app, config.api_addr);
  secure = await listenSecurely(front.app.server, options);
  await essentialTemplate(registry, options);
  ready = true;
  return serverOf(url, apiKey, undo.move());
}

/** Whether a client may have a token that has to stay valid: what ran on without a server, or was paused, keeps its tokens. */
function hasTokens(records: readonly SandboxRecord[]): boolean {
  return records.some(({ state, secure, network }) => state !== 'creating' && (secure || !network.allowPublicTraffic));
}

function webhookTargets(config: Config): readonly WebhookTarget[] {
  const secrets = config['webhooks.secrets'];
  return config['webhooks.urls'].map((url, index) => ({ url, secret: secrets[index] ?? '' }));
}

function extensionUrl(config: Config): string | undefined {
  const url = config['custom_extension.url'];
  return url === '' ? undefined : url;
}

function openHooks({ config, clock, log }: ServerOptions): SandboxHooks {
  const url = extensionUrl(config);
  if (url !== undefined) log.info({ extension: url }, 'the custom extension is asked about every sandbox');
  const timeoutMs = config['custom_extension.timeout_ms'];
  return createSandboxHooks({
    client: url === undefined ? undefined : createExtensionClient({ url, timeoutMs, clock }),
    log,
  });
}

/** Every start and every release may have to wait for the custom extension once. */
function orchestratorTimes(config: Config): typeof DEFAULT_ORCHESTRATOR_CONFIG {
  const times = DEFAULT_ORCHESTRATOR_CONFIG;
  const extra = extensionUrl(config) === undefined ? 0 : config['custom_extension.timeout_ms'];
  return {
    ...times,
    createTimeoutMs: times.createTimeoutMs + extra,
    resumeTimeoutMs: times.resumeTimeoutMs + extra,
    releaseTimeoutMs: times.releaseTimeoutMs + extra,
  };
}

function nodeReporter(
  { config, clock, log, build }: ServerOptions,
  orchestrator: Pick<OwnedOrchestrator, 'status'>,
  ids: UuidSource,
): NodeReporter {
  return createNodeReporter({
    identity: {
      nodeId: config['node_identity.node_id'] ?? hostname(),
      clusterId: config['node_identity.cluster_id'],
      serviceInstanceId: config['node_identity.service_instance_id'] ?? ids.instanceId(),
    },
    build,
    host: createHostUsageProbe({
      directories: [config.home_path, config.runtime_path],
      clock,
      log,
    }),
    status: () => orchestrator.status(),
  });
}

function serverOf(url: string, apiKey: ApiKey, everything: AsyncDisposableStack): RunningServer {
  return { url, apiKeySource: apiKey.source, [Symbol.asyncDispose]: () => everything.disposeAsync() };
}

async function listen(app: FastifyInstance, address: string): Promise<string> {
  const { host, port } = splitAddress(address);
  try {
    await app.listen({ host, port });
  } catch (error) {
    throw cannotListen('api_addr', address, error);
  }
  const bound = app.server.address();
  const actual = bound === null || typeof bound === 'string' ? port : bound.port;
  const reachable = host === '0.0.0.0' ? '127.0.0.1' : host === '::' ? '::1' : host;
  return `http://${reachable.includes(':') ? `[${reachable}]` : reachable}:${actual}`;
}

function certificateFiles(config: Config): readonly CertificateFiles[] {
  const keys = config['tls.private_keys'];
  return config['tls.certificates'].map((certificate, index) => ({ certificate, privateKey: keys[index] ?? '' }));
}

/** The TLS listener beside the plain one, if one is configured. */
async function listenSecurely(
  http: Server,
  { config, clock, log }: ServerOptions,
): Promise<SecureListener | undefined> {
  const address = config['tls.addr'];
  if (address === undefined) return undefined;
  const files = certificateFiles(config);
  const listener = await openSecureListener({ ...splitAddress(address), ...{ http, clock, log, files } });
  log.info({ address }, 'listening with TLS as well');
  return listener;
}

/** Waits for the capture of the template, which may take minutes the first time on a host that emulates. */
async function essentialTemplate(templates: TemplateRegistry, { clock, log, signal }: ServerOptions): Promise<void> {
  const { prepareTimeoutMs: timeoutMs, waitMs } = DEFAULT_TEMPLATE_REGISTRY_CONFIG;
  const bounds = { what: `the preparation of template '${ESSENTIAL_TEMPLATE}'`, timeoutMs, graceMs: 0, signal };
  await callWithin(clock, bounds, async (aborted) => {
    log.info({ template: ESSENTIAL_TEMPLATE }, 'preparing the template');
    for (;;) {
      const started = clock.monotonic();
      try {
        await templates.resolve(ESSENTIAL_TEMPLATE);
        return;
      } catch (error) {
        // The registry answers a waiting caller after a while; the preparation itself goes on.
        if (aborted.aborted || clock.monotonic() - started < waitMs) throw error;
        log.info({ template: ESSENTIAL_TEMPLATE }, 'still preparing the template');
      }
    }
  });
}

/** Waits until no request of the control plane is under way, for a bounded time or until somebody is in a hurry. */
async function drain(front: ControlPlane, { config, clock, log, hurry }: ServerOptions): Promise<void> {
  const enough = Promise.withResolvers<void>();
  const seconds = config.drain_timeout_secs;
  using _limit = clock.timer(seconds * 1000, () => {
    log.warn({ seconds }, 'requests under way did not finish in time');
    enough.resolve();
  });
  hurry.addEventListener('abort', () => enough.resolve(), { once: true });
  if (hurry.aborted) enough.resolve();
  await Promise.race([front.drain(), enough.promise]);
}
