import { createHash } from 'node:crypto';
import { DEFAULT_NETWORK_POLICY, type SnapshotManifest } from '@agentenv/core';
import type { StoredSnapshot } from '../backend.ts';
import type { NetworkSlot } from '../network/slot.ts';
import type { PoolEntry } from '../pool/pool.ts';
import { createSlotVisit } from '../slot-visit.ts';
import { all } from './all-settled.ts';
import { capturedRootfs } from './captured-rootfs.ts';
import { type StartedEngine, startEngine } from './engine.ts';
import { isDefaultPolicy, UnusableInAdvance } from './in-advance.ts';
import { bringUp, capturedGuest, type Machine, type MachineDeps, type MachineUse, whileRunning } from './machine.ts';
import { loadDevices, loadMemory } from './restore-engine.ts';
import { liveFiles } from './snapshot-files.ts';

/**
 * What an engine cannot change once it runs: its machine, the file it maps as memory and its root file system. Captures of
 * the sandboxes of one template agree in it, however many generations lie between.
 */
export function engineShape({ resources, memory, rootfs, fingerprint }: SnapshotManifest): string {
  const { vcpus, memoryMB, diskSizeMB } = resources;
  const facts = [vcpus, memoryMB, diskSizeMB, memory?.sha256, rootfs.sha256 || rootfs.path, fingerprint];
  return createHash('sha256').update(JSON.stringify(facts)).digest('hex');
}

/** An engine in a slot, started on what captures of its shape share, that waits to be told which one it is to restore. */
export interface PreparedEngine extends PoolEntry {
  readonly slot: NetworkSlot;
  readonly engine: StartedEngine;
  /** Digest of the raw image below its disk; a capture may have another one. */
  readonly diskBase: string | undefined;
}

/** Starts an engine that can restore every capture of the shape of `snapshot`, a capture without layers. */
export async function prepareEngine(
  { host, slots }: MachineDeps,
  snapshot: StoredSnapshot,
  signal: AbortSignal,
): Promise<PreparedEngine> {
  const { resources } = snapshot.manifest;
  const rootfs = await capturedRootfs(host.artifacts, snapshot.manifest);
  const { memory, disk } = liveFiles(snapshot);
  const files = { memory: memory.path, rootfs: rootfs.path, disk: disk.path, diskLayers: [] };
  await using undo = new AsyncDisposableStack();
  const slot = await slots.acquire(DEFAULT_NETWORK_POLICY, signal);
  undo.defer(() => slot.release());
  const engine = undo.use(await startEngine(host, { slot, resources, start: { kind: 'incoming' }, files }, signal));
  const release = undo.move();
  return {
    ...{ slot, engine, diskBase: disk.sha256, lost: engine.ended },
    [Symbol.asyncDispose]: () => release.disposeAsync(),
  };
}

/**
 * Restores a capture of its shape in a claimed engine, as `restoreMachine` does; the machine is left of the engine, or
 * nothing. Throws `UnusableInAdvance` when another engine may be tried.
 */
export async function restorePrepared(
  deps: MachineDeps,
  prepared: PreparedEngine,
  request: { readonly snapshot: StoredSnapshot; readonly use: MachineUse },
  signal: AbortSignal,
): Promise<Machine> {
  const { slot, engine, diskBase } = prepared;
  const { snapshot, use } = request;
  const { network, calls = {}, turn } = use;
  await using undo = new AsyncDisposableStack();
  undo.defer(() => slot.release());
  const visit = createSlotVisit();
  undo.defer(() => visit.end());
  undo.use(engine);
  const files = liveFiles(snapshot);
  const rootfs = await capturedRootfs(deps.host.artifacts, snapshot.manifest);
  try {
    using _turn = await turn?.(signal);
    if (!isDefaultPolicy(network)) await slot.applyPolicy(network, signal);
    await whileRunning(engine, signal, async (running) => {
      const { disk: base, diskLayers: layers } = files;
      await all([
        engine.disk.attach({ base, sameBase: base.sha256 === diskBase, layers }, running),
        loadMemory(deps.host, engine, files, snapshot.manifest.resources.memoryMB, running),
      ]);
      running.throwIfAborted();
      await loadDevices(deps.host, engine, running);
    });
  } catch (caught) {
    signal.throwIfAborted();
    throw new UnusableInAdvance('an engine that was started in advance could not be used', { cause: caught });
  }
  // Whoever is told of the slot may take his time: the others have their turn meanwhile.
  await visit.begin(calls, slot, signal);
  using _turn = await turn?.(signal);
  return await bringUp(deps, { slot, visit, engine }, capturedGuest(snapshot, rootfs), undo, signal);
}
