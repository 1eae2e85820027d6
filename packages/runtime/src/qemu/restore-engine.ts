import { copyFile } from 'node:fs/promises';
import { PlatformError, type Resources } from '@agentenv/core';
import type { RootFilesystem, StoredSnapshot } from '../backend.ts';
import type { NetworkSlot } from '../network/slot.ts';
import { all } from './all-settled.ts';
import { type Engine, type StartedEngine, startEngine } from './engine.ts';
import type { EngineHost } from './engine-host.ts';
import { ENGINE_FD } from './qemu-args.ts';
import { nextQmpEvent } from './qmp.ts';
import { type LiveFiles, liveFiles } from './snapshot-files.ts';

const MIB = 1024 * 1024;
const LOAD_DEADLINE_MS = 30_000;

/** Brings the memory of a fresh engine from the base it maps to what was captured. */
async function applyLayers(host: EngineHost, engine: Engine, files: LiveFiles, memoryMB: number): Promise<void> {
  const sources = files.memoryLayers.map(({ path }) => path);
  if (sources.length === 0) return;
  const { pid } = engine.identity;
  const job = { kind: 'apply-layers', pid, mapped: engine.mapped, size: memoryMB * MIB, sources } as const;
  await all([host.memory.run(job), engine.memory.take(files.memoryLayers)]);
}

/** Brings an engine that waits for a capture, and maps its memory, so far that its devices can be loaded. */
export async function loadMemory(
  host: EngineHost,
  engine: StartedEngine,
  files: LiveFiles,
  memoryMB: number,
  signal: AbortSignal | undefined,
): Promise<void> {
  await all([
    applyLayers(host, engine, files, memoryMB),
    copyFile(files.vmState.path, engine.deviceState),
    // So that the end of loading the devices is told.
    engine.qmp.execute(
      'migrate-set-capabilities',
      { capabilities: [{ capability: 'events', state: true }] },
      {},
      signal,
    ),
  ]);
}

/**
 * Loads the devices into an engine that has the memory and the disk; the guest is stopped exactly where it was captured.
 * Rejects with `create_failed`; a failed load ends the engine, which is seen as its end.
 */
export async function loadDevices(host: EngineHost, engine: Engine, signal: AbortSignal | undefined): Promise<void> {
  const { qmp } = engine;
  const loaded = nextQmpEvent(
    qmp,
    host.clock,
    (event) => {
      if (event.name !== 'MIGRATION') return undefined;
      return event.status === 'completed' || event.status === 'failed' ? event.status : undefined;
    },
    LOAD_DEADLINE_MS,
    signal,
  );
  const [, status] = await Promise.all([
    qmp.execute('migrate-incoming', { uri: `fd:${ENGINE_FD.deviceState}` }, {}, signal),
    loaded,
  ]);
  if (status === 'failed') {
    throw new PlatformError('create_failed', 'the captured devices do not fit this virtual machine');
  }
}

export interface RestoreRequest {
  readonly resources: Resources;
  readonly rootfs: RootFilesystem;
  readonly slot: NetworkSlot;
}

/** Starts an engine on a capture and loads it. */
export async function restoreEngine(
  host: EngineHost,
  snapshot: StoredSnapshot,
  { resources, rootfs, slot }: RestoreRequest,
  signal?: AbortSignal,
): Promise<Engine> {
  const files = liveFiles(snapshot);
  await using undo = new AsyncDisposableStack();
  const engine = undo.use(
    await startEngine(
      host,
      {
        slot,
        resources,
        start: { kind: 'incoming' },
        files: {
          memory: files.memory.path,
          rootfs: rootfs.path,
          disk: files.disk.path,
          diskLayers: files.diskLayers,
        },
      },
      signal,
    ),
  );
  await loadMemory(host, engine, files, resources.memoryMB, signal);
  signal?.throwIfAborted();
  await loadDevices(host, engine, signal);
  undo.move();
  return engine;
}
