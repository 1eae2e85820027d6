import {
  createSandboxId,
  createSandboxIndex,
  createSnapshotIndex,
  createTemplateId,
  createUuidSource,
  PlatformError,
  parseSnapshotName,
  parseTemplateReference,
  type Rng,
  type SandboxRecord,
  type SnapshotIndex,
} from '@agentenv/core';
import { sandboxRecord } from '@agentenv/core/testing';
import type { SnapshotRepository } from '@agentenv/storage';
import type { CreateSandbox, DataPlaneTarget, Orchestrator } from '../orchestrator/orchestrator.ts';
import { deriveAccessToken, deriveTrafficAccessToken } from '../secrets/tokens.ts';

const SEED = 'seed-of-a-test';

/** Records of sandboxes without anything that runs: what the HTTP front needs to be tested alone. */
export interface MemoryOrchestrator extends Orchestrator {
  /** What was snapshotted. */
  readonly snapshots: SnapshotIndex & Pick<SnapshotRepository, 'namespace'>;
  /** Every call of a method that changes something, in order. */
  readonly calls: { readonly method: string; readonly arguments: readonly unknown[] }[];
  /** The next changing call fails with this. */
  failNext(error: unknown): void;
  /** Forgets everything, calls included. */
  clear(): void;
  /** Replaces or adds a record. */
  put(record: SandboxRecord): void;
  /** What `target` answers for an id; unless set, that nothing runs there. */
  setTarget(id: string, target: DataPlaneTarget): void;
  /** What happens when a request resumes a sandbox; unless set, that it runs. */
  setWake(wake: ((id: string) => Promise<void>) | undefined): void;
}

/** Namespace of the snapshots. */
const NAMESPACE = 'default';

export function createMemoryOrchestrator(deps: { readonly rng: Rng; readonly now: () => number }): MemoryOrchestrator {
  const snapshots = createSnapshotIndex({ namespace: NAMESPACE });
  const index = createSandboxIndex();
  const targets = new Map<string, DataPlaneTarget>();
  let onWake: ((id: string) => Promise<void>) | undefined;
  const calls: MemoryOrchestrator['calls'] = [];
  let failure: { readonly error: unknown } | undefined;

  const record = (method: string, ...args: readonly unknown[]): void => {
    calls.push({ method, arguments: args });
    const failing = failure;
    failure = undefined;
    if (failing !== undefined) throw failing.error;
  };
  const get = (id: string): SandboxRecord => {
    const found = index.get(id);
    if (found === undefined) throw new PlatformError('not_found', `sandbox '${id}' not found`);
    return found;
  };

  return {
    snapshots: { ...snapshots, namespace: NAMESPACE },
    calls,
    failNext(error) {
      failure = { error };
    },
    clear() {
      for (const { id } of index.all()) index.delete(id);
      for (const { buildId } of snapshots.list({ sandboxId: undefined, name: undefined })) snapshots.delete(buildId);
      targets.clear();
      calls.length = 0;
      failure = undefined;
    },
    put: (sandbox) => index.put(sandbox),
    setTarget: (id, target) => targets.set(id, target),
    setWake(wake) {
      onWake = wake;
    },
    async create(request: CreateSandbox) {
      record('create', request);
      if (request.template !== 'base') {
        throw new PlatformError('not_found', `template '${request.template}' not found`);
      }
      const sandbox = sandboxRecord({
        id: createSandboxId(deps.rng),
        startedAt: deps.now(),
        deadline: deps.now() + request.timeoutSeconds * 1000,
        timeoutSeconds: request.timeoutSeconds,
        secure: request.secure,
        network: request.network,
        metadata: request.metadata,
        envVars: request.envVars,
      });
      index.put(sandbox);
      return sandbox;
    },
    async createCold(request) {
      record('createCold', request);
      const { timeoutSeconds, secure, network, metadata, resources } = request;
      const sandbox = sandboxRecord({
        id: createSandboxId(deps.rng),
        timeoutSeconds,
        secure,
        network,
        metadata,
        resources,
      });
      index.put(sandbox);
      return sandbox;
    },
    async patchParams(id, patch) {
      record('patchParams', id, patch);
      const customExtensionParams = { ...get(id).customExtensionParams, ...patch };
      index.put({ ...get(id), customExtensionParams });
      return customExtensionParams;
    },
    async pause(id, keeps = 'full') {
      record('pause', id, keeps);
      index.put({ ...get(id), state: 'paused' });
    },
    async resume(id, timeoutSeconds, from = 'full') {
      record('resume', id, timeoutSeconds, from);
      const resumed = { ...get(id), state: 'running' as const };
      index.put(resumed);
      return resumed;
    },
    async connect(id, timeoutSeconds, from = 'full') {
      record('connect', id, timeoutSeconds, from);
      return { record: get(id), resumed: get(id).state === 'paused' };
    },
    async wake(id) {
      record('wake', id);
      if (onWake !== undefined) return await onWake(id);
      index.put({ ...get(id), state: 'running' });
    },
    async fork(id, request) {
      record('fork', id, request);
      const source = get(id);
      return Array.from({ length: request.count }, (_, child) => {
        if (child % 2 === 1) return { kind: 'failed', error: new PlatformError('capacity', 'the host is full') };
        const started = { ...source, id: createSandboxId(deps.rng), timeoutSeconds: request.timeoutSeconds };
        index.put(started);
        return { kind: 'started', record: started };
      });
    },
    async snapshot(id, text) {
      record('snapshot', id, text);
      const name = text === undefined ? undefined : parseSnapshotName(text, NAMESPACE);
      const { templateId, buildId, resources, envdVersion, backend, envVars, defaultUser, defaultWorkdir } = get(id);
      const { customExtensionParams } = get(id);
      const clock = { now: deps.now, monotonic: deps.now, timer: () => ({ [Symbol.dispose]() {} }) };
      const [published, ...changed] = snapshots.claim(
        {
          buildId: createUuidSource({ clock, rng: deps.rng }).buildId(),
          templateId: createTemplateId(deps.rng),
          ...{ name: undefined, tags: [], createdAt: deps.now(), sandboxId: get(id).id },
          ...{ origin: { templateId, buildId }, backend, manifestDigest: '', resources, envdVersion },
          context: { envVars, defaultUser, defaultWorkdir, customExtensionParams },
          ...{ spawnCount: 0, lastSpawnedAt: undefined },
        },
        name,
      );
      for (const snapshot of [published, ...changed]) snapshots.put(snapshot);
      return published;
    },
    async deleteTemplate(reference) {
      record('deleteTemplate', reference);
      const match = snapshots.locate(parseTemplateReference(reference));
      if (match?.build === undefined) throw new PlatformError('not_found', `template '${reference}' not found`);
      snapshots.delete(match.build.buildId);
    },
    get,
    list: (filter) => index.page({ ...filter, templateId: filter.template }),
    async setTimeout(id, timeoutSeconds) {
      record('setTimeout', id, timeoutSeconds);
      get(id);
    },
    async refresh(id, durationSeconds) {
      record('refresh', id, durationSeconds);
      get(id);
    },
    async updateNetwork(id, egress) {
      record('updateNetwork', id, egress);
      const sandbox = get(id);
      index.put({ ...sandbox, network: { ...sandbox.network, ...egress } });
    },
    async kill(id, reason) {
      record('kill', id, reason);
      index.delete(get(id).id);
      targets.delete(id);
    },
    target: (id) => targets.get(id) ?? { kind: index.get(id) === undefined ? 'not-found' : 'not-proxyable' },
    findByAccessToken: (token) =>
      index.all().find(({ id, secure }) => secure && deriveAccessToken(SEED, id) === token)?.id,
    accessToken: (sandbox) => (sandbox.secure ? deriveAccessToken(SEED, sandbox.id) : undefined),
    trafficAccessToken: (sandbox) =>
      sandbox.network.allowPublicTraffic ? undefined : deriveTrafficAccessToken(SEED, sandbox.id),
    async [Symbol.asyncDispose]() {},
  };
}
