import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, readdir, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DEFAULT_ALWAYS_DENIED, type Log, SILENT_LOG } from '@agentenv/core';
import { createRealClock } from '@agentenv/core/testing';
import { type HostArtifacts, loadArtifacts } from '../artifacts.ts';
import type { Backend } from '../backend.ts';
import { createExec, type Exec } from '../exec.ts';
import type { NetworkSlots } from '../network/slot.ts';
import { createNetworkSlots, gatewayNamespacePath } from '../network/slots.ts';
import { createProcessStarter } from '../process-starter.ts';
import { endProcess } from '../processes.ts';
import { createQemuBackend, type QemuBackendOptions } from '../qemu/backend.ts';
import { engineLayout } from '../qemu/engine-host.ts';
import { findEngines } from '../qemu/leftovers.ts';
import { createFakeInternet, INTERNET } from './fake-internet.ts';
import { keepCaptures, seedCaptures } from './kept-captures.ts';

const ARTIFACTS = join(import.meta.dirname, '..', '..', '..', '..', '.aenv', 'artifacts');
const PREFIX = 'qemu';

/** A host with real microVMs, real network slots and a fake internet behind them, apart from everything else on it. */
export interface QemuWorld extends AsyncDisposable {
  readonly artifacts: HostArtifacts;
  readonly home: string;
  readonly runtimeDir: string;
  /** Of the server of now. */
  readonly slots: NetworkSlots;
  readonly exec: Exec;
  /** A backend on this host, as a server would make it; ended with the world. Templates other test hosts captured are there. */
  open(options?: Partial<QemuBackendOptions>): Backend;
  /** Lets go of every backend and of the network as if their server had been killed; the next server opens both anew. */
  crash(): Promise<void>;
  emptyDirectory(): Promise<string>;
  /** Processes, directories, groups and slots that generations use, one line each. */
  leftovers(): Promise<readonly string[]>;
}

async function entries(directory: string): Promise<readonly string[]> {
  return (await readdir(directory).catch(() => [])).map((name) => join(directory, name));
}

export interface QemuWorldOptions {
  readonly log?: Log;
  /** Puts the home on a file system of its own with that much room, MiB. */
  readonly homeSizeMB?: number;
  /** Watermarks of network slots made in advance; few unless given. */
  readonly networkPool?: { readonly low: number; readonly high: number };
}

/** Needs root and the artifacts of set-up. */
export async function createQemuWorld(options: QemuWorldOptions = {}): Promise<QemuWorld> {
  const log = options.log ?? SILENT_LOG;
  const clock = createRealClock();
  const stack = new AsyncDisposableStack();
  const starter = stack.use(createProcessStarter());
  const exec = createExec({ clock, starter });
  try {
    const artifacts = await loadArtifacts(ARTIFACTS);
    const root = await mkdtemp(join(tmpdir(), 'aenv-vm-'));
    stack.defer(() => rm(root, { recursive: true, force: true }));
    const home = join(root, 'home');
    const runtimeDir = join(root, 'run');
    if (options.homeSizeMB !== undefined) {
      const image = join(root, 'home.img');
      await writeFile(image, '');
      await truncate(image, options.homeSizeMB * 1024 * 1024);
      await exec({ argv: ['mke2fs', '-q', '-F', '-t', 'ext4', image], deadlineMs: 30_000 });
      await mkdir(home);
      await exec({ argv: ['mount', '-o', 'loop', image, home], deadlineMs: 10_000 });
      stack.defer(async () => {
        await exec({ argv: ['umount', home], deadlineMs: 30_000 });
      });
    }
    await seedCaptures(home);
    const openSlots = () =>
      createNetworkSlots({
        ...{ runtimeDir, prefix: PREFIX, exec, clock, log, uplink: 'none' },
        dnsServers: [INTERNET.dns],
        alwaysDeniedCidrs: DEFAULT_ALWAYS_DENIED,
        uidBase: 62_000,
        pool: options.networkPool ?? { low: 1, high: 2 },
        hostAddresses: () => [INTERNET.hostPublic],
      });
    const layout = engineLayout(home, runtimeDir);
    let slots = await openSlots();
    stack.defer(async () => {
      // Of a crash that nobody put in order.
      for (const engine of (await findEngines(layout)).values()) {
        await endProcess(engine, clock, 10_000);
      }
      await slots.removeLeftovers();
      await slots[Symbol.asyncDispose]();
    });
    const behind = gatewayNamespacePath({ runtimeDir, prefix: PREFIX });
    stack.use(await createFakeInternet({ exec, path: join(runtimeDir, 'netns', 'internet'), behind }));
    const backends: Backend[] = [];
    stack.defer(async () => {
      await Promise.all(backends.map((backend) => backend[Symbol.asyncDispose]()));
    });
    return {
      ...{ artifacts, home, runtimeDir, exec },
      get slots() {
        return slots;
      },
      open(overrides = {}) {
        const rng = { bytes: (length: number) => randomBytes(length) };
        const backend = createQemuBackend({
          ...{ artifacts, home, runtimeDir, slots, starter, clock, rng, log },
          accelerator: 'auto',
          pool: { low: 0, high: 0 },
          engines: { low: 0, high: 0 },
          ...overrides,
        });
        backends.push(backend);
        return {
          ...backend,
          async prepareTemplate(rootfs, resources, signal) {
            await seedCaptures(home, resources);
            const template = await backend.prepareTemplate(rootfs, resources, signal);
            await keepCaptures(home, resources);
            return template;
          },
        };
      },
      async crash() {
        await Promise.all(backends.splice(0).map((backend) => backend.abandon()));
        await slots.abandon();
        slots = await openSlots();
      },
      emptyDirectory: () => mkdtemp(join(root, 'capture-')),
      async leftovers() {
        const engines = [...(await findEngines(layout)).values()];
        const groups = await Promise.all(
          ['cpu', 'memory', '.'].map((name) => entries(join('/sys/fs/cgroup', name, 'aenv'))),
        );
        const { inUse } = slots.status();
        return [
          ...engines.map(({ pid }) => `process ${pid}`),
          ...(await entries(layout.sockets)),
          ...(await entries(layout.instances)),
          ...(await entries(layout.layers)),
          ...groups.flat().filter((path) => path.includes(layout.namePrefix)),
          ...(inUse === 0 ? [] : [`${inUse} slots in use`]),
        ];
      },
      [Symbol.asyncDispose]: () => stack.disposeAsync(),
    };
  } catch (error) {
    await stack.disposeAsync();
    throw error;
  }
}
