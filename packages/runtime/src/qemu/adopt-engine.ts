import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError, type Resources } from '@agentenv/core';
import type { KnownInstance } from '../backend.ts';
import { endProcess, isRunning } from '../processes.ts';
import { createDiskChain } from './disk-chain.ts';
import { connectQmp, type Engine, engineOf, ownDirectories } from './engine.ts';
import { watchEnd } from './engine-end.ts';
import type { EngineHost } from './engine-host.ts';
import type { MachineIdentity } from './engine-identity.ts';
import { findDiskChain } from './find-disk-chain.ts';
import { findMemoryChain } from './find-memory-chain.ts';
import { createMemoryChain } from './memory-chain.ts';
import { DEVICE_STATE, QMP_SOCKET } from './qemu-args.ts';
import type { Qmp } from './qmp.ts';
import { isFields } from './qmp-events.ts';

const MIB = 1024 * 1024;
const KILL_DEADLINE_MS = 10_000;
/** `query-status` of a guest that runs, or was stopped by its server and can go on (qapi `RunState`). */
const ALIVE = ['running', 'paused'];

async function requireAlive(qmp: Qmp, wanted: KnownInstance['wanted']): Promise<void> {
  const answer = await qmp.execute('query-status');
  const status = isFields(answer) ? String(answer.status) : 'unknown';
  if (wanted === 'running-unless-held' && status === 'paused') {
    throw new PlatformError('conflict', 'it was paused before its server ended');
  }
  if (!ALIVE.includes(status)) throw new PlatformError('sandbox_unavailable', `the guest is not alive: ${status}`);
}

/**
 * Takes over the running engine of a former server; its guest is left as it is, running or stopped. Rejects when it is
 * gone or cannot go on; nothing of it is left then.
 */
export async function adoptEngine(
  host: EngineHost,
  {
    identity,
    resources,
    wanted,
  }: {
    readonly identity: MachineIdentity;
    readonly resources: Resources;
    readonly wanted: KnownInstance['wanted'];
  },
): Promise<Engine> {
  const { clock, layout } = host;
  const { pid, startTime, name, uuid, mapped, diskBase, uid } = identity;
  if (!name.startsWith(layout.namePrefix)) throw new PlatformError('conflict', 'its engine belongs to another home');
  if (!(await isRunning(identity))) throw new PlatformError('sandbox_unavailable', 'its engine is gone');
  const log = host.log.child({ engine: name });
  await using undo = new AsyncDisposableStack();
  const directories = ownDirectories(layout, name.slice(layout.namePrefix.length), undo);
  const { sockets, instance, lower } = directories;
  undo.defer(() => host.cgroups.remove(name));
  // A merge is given up after the guest has ended, as nobody's guest is to run on meanwhile.
  const afterGuest = undo.use(new AsyncDisposableStack());
  undo.defer(() => endProcess(identity, clock, KILL_DEADLINE_MS));
  const qmp = undo.use(await connectQmp(join(sockets, QMP_SOCKET), clock, undefined));
  await requireAlive(qmp, wanted);
  const found = await findDiskChain({ qmp, instance, layerDirectory: lower, owner: uid });
  // Of a capture that was not finished. It takes little room, and the next one writes over it.
  await rm(join(instance, DEVICE_STATE), { force: true }).catch((error: unknown) => {
    log.warn({ error }, 'what was left of a capture could not be removed');
  });
  const memory = afterGuest.use(
    createMemoryChain({
      ...{ directory: lower, layers: await findMemoryChain(lower, log), size: resources.memoryMB * MIB },
      ...{ jobs: host.background, log },
    }),
  );
  // It is not our child: its end shows at its control socket.
  const { promise: exited } = Promise.withResolvers<string>();
  const ended = watchEnd({ qmp, exited, tail: () => '', clock, log });
  const disk = createDiskChain({
    ...{ qmp, instance, layerDirectory: lower, base: diskBase, ...found },
    ...{ owner: uid, bytes: resources.diskSizeMB * MIB },
  });
  const process = { pid, startTime, name, uuid, mapped };
  const engine = engineOf(host, {
    process,
    resources,
    qmp,
    uid,
    directories,
    disk,
    memory,
    ended,
    release: undo.move(),
  });
  if (found.unused.length > 0) engine.compact();
  return engine;
}
