import { join } from 'node:path';
import { type Clock, type Log, PlatformError, type Rng } from '@agentenv/core';
import {
  type Backend,
  createExec,
  createFakeBackend,
  createFakeWorld,
  createFileArtifacts,
  createNetworkSlots,
  createProcessStarter,
  createQemuBackend,
  type Exec,
  loadArtifacts,
  type NetworkSlots,
} from '@agentenv/runtime';
import type { Config } from './config/schema.ts';
import type { TemplateSource } from './templates/template-registry.ts';

/** What runs sandboxes on this host, ready to use. Disposing ends all of it. */
export interface HostBackend extends AsyncDisposable {
  readonly backend: Backend;
  readonly templates: readonly TemplateSource[];
  slots(): { readonly ready: number; readonly inUse: number };
  /** Ends as disposing does, except that running sandboxes are left to the next server. */
  abandon(): Promise<void>;
}

export interface HostBackendDependencies {
  readonly config: Config;
  readonly uid: number;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly log: Log;
}

/** Begins the names of namespaces; they lie in this server's own runtime directory. */
const NAMESPACE_PREFIX = 'aenv';

/** The backend the configuration chooses. Not usable here: `unavailable` with every reason and its remedy. */
export async function openHostBackend(deps: HostBackendDependencies): Promise<HostBackend> {
  return deps.config.backend === 'fake' ? openFake(deps) : openQemu(deps);
}

function resources(config: Config): TemplateSource['resources'] {
  return {
    vcpus: config['machine.vcpu_count'],
    memoryMB: config['machine.mem_size_mib'],
    diskSizeMB: config['machine.disk_size_mib'],
  };
}

async function openFake({ config, clock, log }: HostBackendDependencies): Promise<HostBackend> {
  log.warn({}, 'the fake backend isolates nothing and runs no programs; it is for tests of clients');
  // Files, as with every other backend: what is paused outlives the server.
  const world = createFakeWorld({ clock, artifacts: createFileArtifacts() });
  const backend = createFakeBackend({ world, templates: join(config.home_path, 'fake/templates') });
  return {
    backend,
    templates: [{ name: 'base', rootfs: { path: '/fake/base', digest: 'fake' }, resources: resources(config) }],
    slots: () => ({ ready: 0, inUse: 0 }),
    abandon: () => backend.abandon(),
    [Symbol.asyncDispose]: () => backend[Symbol.asyncDispose](),
  };
}

async function openQemu(deps: HostBackendDependencies): Promise<HostBackend> {
  const { config, clock, rng, log } = deps;
  if (deps.uid !== 0) {
    throw new PlatformError(
      'permission_denied',
      'the server needs root for network namespaces, taps and the user ids of engines; start it by ./aenv server or with sudo',
    );
  }
  await using undo = new AsyncDisposableStack();
  const starter = undo.use(createProcessStarter());
  starter.prepare();
  const artifacts = await loadArtifacts(config.deps_path);
  const slots = undo.use(await openSlots(deps, createExec({ clock, starter })));
  const backend = undo.use(
    createQemuBackend({
      artifacts,
      home: join(config.home_path, 'qemu'),
      runtimeDir: config.runtime_path,
      slots,
      starter,
      clock,
      rng,
      log: log.child({ part: 'qemu' }),
      accelerator: config['qemu.accelerator'],
      pool: { low: config['pool.low_watermark'], high: config['pool.high_watermark'] },
      engines: { low: config['pool.engines.low_watermark'], high: config['pool.engines.high_watermark'] },
    }),
  );
  const probe = await backend.probe();
  if (!probe.usable) {
    const lacks = probe.reasons.map((reason, index) => `${reason} (${probe.remedies[index] ?? 'no remedy known'})`);
    throw new PlatformError('unavailable', `the backend ${backend.name} cannot run here: ${lacks.join('; ')}`);
  }
  log.info({ backend: backend.name, accelerator: probe.accelerator, limits: probe.reasons }, 'backend chosen');
  const everything = undo.move();
  return {
    backend,
    templates: Object.entries(artifacts.rootfs).map(([name, rootfs]) => ({
      name,
      rootfs,
      resources: resources(config),
    })),
    slots: () => slots.status(),
    async abandon() {
      try {
        await backend.abandon();
      } finally {
        // Whatever became of that: disposing the slots would take them from the engines.
        await slots.abandon();
        // The engines go on without the one who started them.
        await starter[Symbol.asyncDispose]();
      }
    },
    [Symbol.asyncDispose]: () => everything.disposeAsync(),
  };
}

function openSlots({ config, clock, log }: HostBackendDependencies, exec: Exec): Promise<NetworkSlots> {
  return createNetworkSlots({
    runtimeDir: config.runtime_path,
    prefix: NAMESPACE_PREFIX,
    exec,
    clock,
    log: log.child({ part: 'network' }),
    uplink: config['network.uplink'],
    ...(config['network.dns_servers'].length === 0 ? {} : { dnsServers: config['network.dns_servers'] }),
    alwaysDeniedCidrs: config['network.egress.always_denied_cidrs'],
    uidBase: config['network.uid_base'],
    pool: { low: config['pool.network.low_watermark'], high: config['pool.network.high_watermark'] },
    addressing: {
      vethCidr: config['network.internal.veth_cidr'],
      vethCidr6: config['network.internal.veth_cidr6'],
      hostInteractionCidr: config['network.internal.host_interaction_cidr'],
    },
  });
}
