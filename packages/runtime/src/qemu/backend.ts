import { availableParallelism } from 'node:os';
import { type Clock, holdEventLoop, type Log, PlatformError, type Rng } from '@agentenv/core';
import { activationFor } from '../activation.ts';
import type { HostArtifacts } from '../artifacts.ts';
import type { Backend, KnownInstance, LaunchPlan, Reconciliation, RunningSandbox, StoredSnapshot } from '../backend.ts';
import { createExec } from '../exec.ts';
import { assertBootable, assertRestorable } from '../fingerprint.ts';
import { GUEST_ADDRESSING } from '../network/addressing.ts';
import type { NetworkSlots } from '../network/slot.ts';
import type { ProcessStarter } from '../process-starter.ts';
import { isRunning } from '../processes.ts';
import { createBackgroundJobs } from './background-jobs.ts';
import { BACKEND_NAME } from './capture.ts';
import { createEngineCgroups } from './cgroups.ts';
import { createClockKeeper } from './clock-keeper.ts';
import { type EngineHost, engineLayout, makeLayout } from './engine-host.ts';
import { readIdentity } from './engine-identity.ts';
import { createGate } from './gate.ts';
import { hostFault } from './host-fault.ts';
import { UnusableInAdvance } from './in-advance.ts';
import { findEngines, removeLeftovers } from './leftovers.ts';
import {
  adoptMachine,
  bootMachine,
  type Machine,
  type MachineDeps,
  type MachineUse,
  rebootMachine,
  restoreMachine,
} from './machine.ts';
import { createMachinePools, type PoolSize } from './machine-pools.ts';
import { watchMemory } from './memory-pressure.ts';
import { createMemoryThread } from './memory-thread.ts';
import { prepareEngine, restorePrepared } from './prepared-engine.ts';
import { type AcceleratorChoice, probeHost, probeKvm, readEngineVersion } from './probe.ts';
import { type Accelerator, engineFingerprint } from './qemu-args.ts';
import { createRunningVm, type RunningVm, type RunningVmDeps } from './running-vm.ts';
import { createSnapshotIntegrity } from './snapshot-integrity.ts';
import { createTemplates, type Templates } from './templates.ts';
import { cachedTscKhz, measureTscKhz, readCpuModel } from './tsc.ts';
import { makeWarmMachine, wakeMachine } from './warm-machine.ts';

const DEFAULT_ENGINE = '/usr/bin/qemu-system-x86_64';
const CGROUP_ROOT = '/sys/fs/cgroup';
const SWEEP_MS = 30_000;
/** Engines started at the same time for waiting callers, per core: more only delays the first of them. */
const STARTS_PER_CORE = 2;

export interface QemuBackendOptions {
  readonly artifacts: HostArtifacts;
  /** Templates, disks and what is measured once; on a disk with room. Absolute. */
  readonly home: string;
  /** Sockets; at most 80 bytes long. Absolute. */
  readonly runtimeDir: string;
  readonly slots: NetworkSlots;
  /** Starts engines and commands; it has to live as long as the backend. */
  readonly starter: ProcessStarter;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly log: Log;
  /** `auto`: KVM where an unprivileged engine can use it. */
  readonly accelerator: AcceleratorChoice;
  /** Guests kept ready per warmed template. */
  readonly pool: PoolSize;
  /** Engines kept ready per warmed template, for captures of its sandboxes. */
  readonly engines: PoolSize;
  readonly enginePath?: string;
}

/** Everything that needs the host's facts; found out once, with the first call. */
interface Ready extends MachineDeps {
  readonly host: EngineHost;
  readonly templates: Templates;
}

/**
 * MicroVMs by QEMU, with KVM or emulated (design section 4). Throws `invalid_argument` when `runtimeDir` is too long for
 * socket paths. Disposing ends every sandbox and pool entry of this backend.
 */
export function createQemuBackend(options: QemuBackendOptions): Backend {
  const { artifacts, home, slots, starter, clock, rng, log } = options;
  const enginePath = options.enginePath ?? DEFAULT_ENGINE;
  const layout = engineLayout(home, options.runtimeDir);
  const exec = createExec({ clock, starter });
  const memory = createMemoryThread();
  const integrity = createSnapshotIntegrity({ memory, exec, log });
  const clocks = createClockKeeper(clock);
  const gate = createGate(Math.max(2, availableParallelism() * STARTS_PER_CORE));
  const stopping = new AbortController();
  const pools = createMachinePools({
    ...{ machines: options.pool, engines: options.engines, clock, log },
    async makeMachine(snapshot, signal) {
      const deps = await onHost();
      await integrity.verify(snapshot);
      return makeWarmMachine(deps, snapshot, signal);
    },
    async makeEngine(snapshot, signal) {
      const deps = await onHost();
      await integrity.verify(snapshot);
      return prepareEngine(deps, snapshot, signal);
    },
  });
  const running = new Set<RunningVm>();
  const underWay = new Set<Promise<unknown>>();
  let sweepTimer: Disposable | undefined;
  let ready: Promise<Ready> | undefined;

  async function chooseAccelerator(): Promise<Accelerator> {
    const cpuModel = await readCpuModel();
    const kvm = options.accelerator === 'tcg' ? undefined : await probeKvm();
    if (kvm?.usable) return { kind: 'kvm', cpuModel, group: kvm.group };
    if (options.accelerator === 'kvm') throw new PlatformError('unavailable', `KVM was asked for: ${kvm?.reason}`);
    const { signal } = stopping;
    const measure = () => measureTscKhz({ enginePath, kernelPath: artifacts.kernel.path, clock, signal });
    return { kind: 'tcg', tscKhz: await cachedTscKhz(home, cpuModel, measure) };
  }

  async function prepareHost(): Promise<Ready> {
    await makeLayout(layout);
    const engineVersion = await readEngineVersion(enginePath, exec);
    const accelerator = await chooseAccelerator();
    const { digest: kernelDigest } = artifacts.kernel;
    const { mac } = GUEST_ADDRESSING;
    const fingerprint = engineFingerprint({ engineVersion, accelerator, kernelDigest, mac });
    const cgroups = await createEngineCgroups({ root: CGROUP_ROOT, clock, log });
    const host: EngineHost = {
      ...{ layout, artifacts, enginePath, engineVersion, accelerator, fingerprint, cgroups, starter },
      ...{ memory, background: createBackgroundJobs({ clock }), clock, rng, log },
    };
    const deps = { host, slots, exec };
    return { ...deps, templates: createTemplates({ ...deps, integrity, stopping: stopping.signal }) };
  }

  function onHost(): Promise<Ready> {
    if (stopping.signal.aborted) return Promise.reject(new PlatformError('unavailable', 'the backend is shut down'));
    ready ??= prepareHost().catch((caught: unknown) => {
      // The next call tries again: what was missing may have been installed.
      ready = undefined;
      throw PlatformError.fromUnknown(caught, 'the host could not be prepared');
    });
    return ready;
  }

  /** Work that closing the backend aborts and waits for, so that it leaves nothing. */
  function track<T>(work: Promise<T>): Promise<T> {
    const settled: Promise<unknown> = work.then(
      () => underWay.delete(settled),
      () => underWay.delete(settled),
    );
    underWay.add(settled);
    return work;
  }

  /** The machine becomes the plan's sandbox: its key, identity and files, before any user instruction runs. */
  async function activate(
    { host }: Ready,
    machine: Machine,
    plan: LaunchPlan,
    signal: AbortSignal | undefined,
  ): Promise<RunningSandbox> {
    await machine.agent.activate(activationFor(plan, machine.slot.guest), signal);
    if (plan.identity === 'kept') {
      // Of many children of one capture each would merge the same.
      machine.engine.compact();
    }
    return hold(host, machine, plan);
  }

  /** The machine is this server's from now on. */
  function hold(host: EngineHost, machine: Machine, plan: RunningVmDeps['plan']): RunningVm {
    const sandbox = createRunningVm({
      ...{ host, machine, plan, exec, clocks },
      onCaptured: (snapshot) => integrity.trust(snapshot),
      onGone: () => running.delete(sandbox),
    });
    running.add(sandbox);
    return sandbox;
  }

  /** The machine goes on as this server's; undefined when it cannot, and then something of it may be left. */
  async function adopt(deps: Ready, known: KnownInstance): Promise<RunningVm | undefined> {
    const { instanceId, sandboxId } = known;
    try {
      const identity = readIdentity(known.identity);
      if (identity === undefined && known.wanted === 'running-unless-held') return undefined;
      if (identity === undefined) throw new PlatformError('not_found', 'the record says too little of its engine');
      if (identity.instanceId !== instanceId) throw new PlatformError('conflict', 'the record names another engine');
      // Of most that are paused nothing is left, and their slots may be those of others by now.
      if (known.wanted === 'running-unless-held' && !(await isRunning(identity))) return undefined;
      // Each has its deadlines to itself, however many there are.
      using _turn = await gate.enter();
      return hold(deps.host, await adoptMachine(deps, known, identity), known);
    } catch (caught) {
      const error = PlatformError.fromUnknown(caught);
      log.warn({ sandbox: sandboxId, error }, 'a sandbox of a former server cannot go on');
      return undefined;
    }
  }

  async function reconcile(known: readonly KnownInstance[]): Promise<Reconciliation> {
    const deps = await onHost();
    const found = await findEngines(deps.host.layout);
    const wanted = known.filter((instance) => instance.wanted !== 'ended');
    const adopted = (await Promise.all(wanted.map((instance) => adopt(deps, instance)))).filter(
      (vm) => vm !== undefined,
    );
    const spared = new Set(adopted.map(({ identity }) => String(identity.name)));
    await removeLeftovers(deps.host, spared);
    await slots.removeLeftovers();
    const ended = new Set([...found.keys()].filter((name) => !spared.has(name)));
    const endedKnown = known.filter(({ instanceId, identity }) => {
      return identity?.instanceId === instanceId && ended.has(String(identity.name));
    });
    return { ended: ended.size, endedKnown: endedKnown.map(({ instanceId }) => instanceId), adopted };
  }

  /** Gets a machine by `make`, activates it, and leaves nothing of it when either fails. */
  async function launch(
    plan: LaunchPlan,
    signal: AbortSignal | undefined,
    make: (ready: Ready, signal: AbortSignal) => Promise<Machine>,
  ): Promise<RunningSandbox> {
    try {
      const abort = signal === undefined ? stopping.signal : AbortSignal.any([signal, stopping.signal]);
      abort.throwIfAborted();
      const deps = await onHost();
      using _pools = pools.foreground();
      await using undo = new AsyncDisposableStack();
      const machine = undo.use(await make(deps, abort));
      const sandbox = await activate(deps, machine, plan, abort);
      undo.move();
      return sandbox;
    } catch (caught) {
      throw hostFault(caught, 'the sandbox could not be started');
    }
  }

  const useOf = (plan: LaunchPlan): MachineUse => ({
    network: plan.network,
    calls: plan,
    turn: (signal) => gate.enter(signal),
  });

  /** Something else takes the place of what was made in advance and could not be used; other failures are thrown. */
  function passOver(caught: unknown): void {
    if (!(caught instanceof UnusableInAdvance)) throw caught;
    log.warn({ error: PlatformError.fromUnknown(caught.cause) }, caught.message);
  }

  async function claimMachine(
    snapshot: StoredSnapshot,
    plan: LaunchPlan,
    signal: AbortSignal,
  ): Promise<Machine | undefined> {
    const entry = pools.machine(snapshot);
    if (entry === undefined) return undefined;
    try {
      await wakeMachine(entry.machine, plan, signal);
      return entry.machine;
    } catch (caught) {
      await entry[Symbol.asyncDispose]();
      passOver(caught);
      return undefined;
    }
  }

  /** A warm machine where there is one, else an engine that was started in advance, else a fresh one. */
  async function obtain(
    deps: Ready,
    snapshot: StoredSnapshot,
    plan: LaunchPlan,
    signal: AbortSignal,
  ): Promise<Machine> {
    const machine = await claimMachine(snapshot, plan, signal);
    if (machine !== undefined) return machine;
    const use = useOf(plan);
    const prepared = pools.engine(snapshot);
    if (prepared !== undefined) {
      try {
        return await restorePrepared(deps, prepared, { snapshot, use }, signal);
      } catch (caught) {
        passOver(caught);
      }
    }
    return restoreMachine(deps, snapshot, use, signal);
  }

  function sweepLater(): void {
    if (stopping.signal.aborted || sweepTimer !== undefined) return;
    sweepTimer = clock.timer(SWEEP_MS, () => {
      sweepTimer = undefined;
      sweep()
        .catch((error: unknown) => log.error({ error }, 'captured files could not be checked'))
        .finally(sweepLater);
    });
  }

  /** Refuses a capture whose files were changed, and with it the guests made of it in advance. */
  async function trusted(snapshot: StoredSnapshot): Promise<void> {
    try {
      await integrity.verify(snapshot);
    } catch (caught) {
      await pools.close(snapshot.directory);
      throw caught;
    }
  }

  async function sweep(): Promise<void> {
    for (const directory of await integrity.sweep()) await pools.close(directory);
  }

  /** Ends everything that is nobody's; what is somebody's is left to `leave`. */
  async function end(leave: (sandbox: RunningVm) => Promise<void>): Promise<void> {
    if (stopping.signal.aborted) return;
    using _alive = holdEventLoop();
    stopping.abort(new PlatformError('unavailable', 'the server is shutting down'));
    pressure[Symbol.dispose]();
    sweepTimer?.[Symbol.dispose]();
    await pools[Symbol.asyncDispose]();
    const settled = await ready?.catch(() => undefined);
    await Promise.all([...underWay, settled?.templates.settled()]);
    await Promise.all([...running].map(leave));
    await clocks[Symbol.asyncDispose]();
    await settled?.host.cgroups.removeParents();
    await memory[Symbol.asyncDispose]();
  }

  const pressure = watchMemory({
    clock,
    log,
    onLow() {
      pools.suspend().catch((error: unknown) => log.error({ error }, 'the pools could not be given up'));
    },
    onRecovered() {
      pools.resume();
    },
  });

  return {
    name: BACKEND_NAME,
    async probe() {
      const cgroups = await createEngineCgroups({ root: CGROUP_ROOT, clock, log });
      // Looking is making; a probe leaves nothing.
      await cgroups.removeParents();
      const { accelerator } = options;
      const uid = process.getuid?.();
      return probeHost({ artifacts, enginePath, accelerator, exec, uid, cgroupLimitation: cgroups.limitation });
    },
    async prepareTemplate(rootfs, resources, signal) {
      const { templates } = await onHost();
      const snapshot = await templates.prepare(rootfs, resources, signal);
      sweepLater();
      return snapshot;
    },
    warm: (snapshot) => pools.warm(snapshot),
    create(rootfs, plan, signal) {
      const { resources } = plan;
      const boot = (deps: Ready, abort: AbortSignal) =>
        bootMachine(deps, { rootfs, resources, use: useOf(plan) }, abort);
      return track(launch(plan, signal, boot));
    },
    boot(snapshot, plan, signal) {
      const booted = async (deps: Ready, abort: AbortSignal) => {
        assertBootable(snapshot.manifest, BACKEND_NAME);
        await integrity.verifyDisk(snapshot);
        return rebootMachine(deps, snapshot, useOf(plan), abort);
      };
      return track(launch(plan, signal, booted));
    },
    async requireRestorable(manifest) {
      assertRestorable(manifest, { backend: BACKEND_NAME, fingerprint: (await onHost()).host.fingerprint });
    },
    restore(snapshot, plan, signal) {
      const restored = async (deps: Ready, abort: AbortSignal) => {
        assertRestorable(snapshot.manifest, { backend: BACKEND_NAME, fingerprint: deps.host.fingerprint });
        await trusted(snapshot);
        return obtain(deps, snapshot, plan, abort);
      };
      return track(launch(plan, signal, restored));
    },
    async reconcile(known) {
      using _alive = holdEventLoop();
      return track(reconcile(known));
    },
    status: () => pools.status(),
    async abandon() {
      await end((sandbox) => sandbox.abandon());
    },
    async [Symbol.asyncDispose]() {
      await end((sandbox) => sandbox.stop());
    },
  };
}
