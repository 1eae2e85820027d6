import { createHash } from 'node:crypto';
import { mkdir, open, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { DEFAULT_NETWORK_POLICY, PlatformError, type Resources } from '@agentenv/core';
import type { RootFilesystem, StoredSnapshot } from '../backend.ts';
import { formatFingerprint } from '../fingerprint.ts';
import { captureEngine, readManifest } from './capture.ts';
import { bootMachine, type MachineDeps } from './machine.ts';
import type { SnapshotIntegrity } from './snapshot-integrity.ts';
import { rehearsal, runOnce, TEMPLATE_WARM_UP } from './warm-up.ts';

/** Raised when what a template is prepared with changes. */
const RECIPE = 3;
const QUIESCE_LEASE_MS = 5_000;
export const UNFINISHED_PREFIX = '.build-';

/** Captured templates, kept by what they were made of. */
export interface Templates {
  /** The capture for these inputs, made when there is none or its files are damaged. Callers at the same time share one. */
  prepare(rootfs: RootFilesystem, resources: Resources, signal?: AbortSignal): Promise<StoredSnapshot>;
  /** Resolves when nothing is being made any more. */
  settled(): Promise<void>;
}

export interface TemplatesDeps extends MachineDeps {
  readonly integrity: SnapshotIntegrity;
  /** Ends what is being made; a caller's own signal only ends its waiting. */
  readonly stopping: AbortSignal;
}

export function createTemplates(deps: TemplatesDeps): Templates {
  const { host, exec, integrity, stopping } = deps;
  const preparing = new Map<string, Promise<StoredSnapshot>>();

  function keyOf(rootfs: RootFilesystem, { vcpus, memoryMB, diskSizeMB }: Resources): string {
    const fingerprint = formatFingerprint(host.fingerprint);
    const facts = [RECIPE, rootfs.digest, vcpus, memoryMB, diskSizeMB, fingerprint, host.artifacts.initramfs.digest];
    return createHash('sha256').update(JSON.stringify(facts)).digest('hex').slice(0, 32);
  }

  async function cached(directory: string): Promise<StoredSnapshot | undefined> {
    const manifest = await readManifest(directory);
    if (manifest === undefined) return undefined;
    const snapshot = { directory, manifest };
    try {
      await integrity.verify(snapshot);
      return snapshot;
    } catch (caught) {
      stopping.throwIfAborted();
      const error = PlatformError.fromUnknown(caught);
      host.log.error({ directory, error }, 'a damaged template is made anew');
      return undefined;
    }
  }

  async function build(rootfs: RootFilesystem, resources: Resources, directory: string): Promise<StoredSnapshot> {
    const started = host.clock.monotonic();
    const unfinished = join(
      host.layout.templates,
      `${UNFINISHED_PREFIX}${Buffer.from(host.rng.bytes(8)).toString('hex')}`,
    );
    await using undo = new AsyncDisposableStack();
    undo.defer(() => rm(unfinished, { recursive: true, force: true }));
    await mkdir(unfinished, { mode: 0o700 });
    const machine = undo.use(
      await bootMachine(deps, { rootfs, resources, use: { network: DEFAULT_NETWORK_POLICY } }, stopping),
    );
    const { agent, engine } = machine;
    const bootedMs = host.clock.monotonic() - started;
    const activation = rehearsal(machine.slot.guest, engine.identity.uuid, host.rng);
    await agent.activate(activation, stopping);
    for (const argv of TEMPLATE_WARM_UP) await runOnce(agent, argv, host.log, stopping);
    await agent.quiesce(QUIESCE_LEASE_MS, stopping);
    await engine.qmp.execute('stop', {}, {}, stopping);
    const { manifest } = await captureEngine(
      host,
      {
        ...{ contents: 'full', engine, resources, rootfs, origin: undefined },
        ...{ fingerprint: host.fingerprint, channelKey: activation.key },
      },
      unfinished,
      exec,
      stopping,
    );
    await rm(directory, { recursive: true, force: true });
    await rename(unfinished, directory);
    await syncDirectory(host.layout.templates);
    await integrity.trust({ directory, manifest });
    const totalMs = host.clock.monotonic() - started;
    const { memory, disk } = manifest;
    host.log.info(
      { directory, bootedMs, totalMs, memoryBytes: memory?.size, diskBytes: disk.size },
      'a template was captured',
    );
    return { directory, manifest };
  }

  async function cachedOrBuilt(
    rootfs: RootFilesystem,
    resources: Resources,
    directory: string,
  ): Promise<StoredSnapshot> {
    try {
      return (await cached(directory)) ?? (await build(rootfs, resources, directory));
    } catch (caught) {
      throw PlatformError.fromUnknown(caught, 'the template could not be prepared');
    }
  }

  return {
    async prepare(rootfs, resources, signal) {
      signal?.throwIfAborted();
      const key = keyOf(rootfs, resources);
      let work = preparing.get(key);
      if (work === undefined) {
        work = cachedOrBuilt(rootfs, resources, join(host.layout.templates, key)).finally(() => preparing.delete(key));
        preparing.set(key, work);
        // A caller that gave up does not leave the outcome unobserved.
        work.catch(() => undefined);
      }
      return signal === undefined ? work : abortable(work, signal);
    },
    async settled() {
      await Promise.allSettled(preparing.values());
    },
  };
}

/** The outcome of `work`, or the abort of waiting for it. */
function abortable<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise, resolve, reject } = Promise.withResolvers<T>();
  const onAbort = (): void => reject(PlatformError.fromUnknown(signal.reason));
  signal.addEventListener('abort', onAbort, { once: true });
  work.then(resolve, reject);
  return promise.finally(() => signal.removeEventListener('abort', onAbort));
}

async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, 'r');
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}
