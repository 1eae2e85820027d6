import { join } from 'node:path';
import { PlatformError, type Resources } from '@agentenv/core';
import type { StoredSnapshot } from '../backend.ts';
import type { NetworkSlot } from '../network/slot.ts';
import { type Engine, startEngine } from './engine.ts';
import type { EngineHost } from './engine-host.ts';
import { ENGINE_FD } from './qemu-args.ts';
import { nextQmpEvent } from './qmp.ts';

const LOAD_DEADLINE_MS = 30_000;

/** Reports completion; a failed load ends the engine, which is seen as its end. */
async function loadDevices(host: EngineHost, engine: Engine, signal: AbortSignal | undefined): Promise<void> {
  const { qmp } = engine;
  await qmp.execute('migrate-set-capabilities', { capabilities: [{ capability: 'events', state: true }] }, {}, signal);
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

/** Starts an engine on a capture and loads its devices; the guest is stopped exactly where it was captured. */
export async function restoreEngine(
  host: EngineHost,
  snapshot: StoredSnapshot,
  resources: Resources,
  slot: NetworkSlot,
  signal?: AbortSignal,
): Promise<Engine> {
  const { manifest, directory } = snapshot;
  await using undo = new AsyncDisposableStack();
  const engine = undo.use(
    await startEngine(
      host,
      {
        slot,
        resources,
        start: { kind: 'incoming' },
        files: {
          memory: join(directory, manifest.memory.path),
          rootfs: manifest.rootfs.path,
          disk: join(directory, manifest.disk.path),
          deviceState: join(directory, manifest.vmState.path),
        },
      },
      signal,
    ),
  );
  await loadDevices(host, engine, signal);
  undo.move();
  return engine;
}
