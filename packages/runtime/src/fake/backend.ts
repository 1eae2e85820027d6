import { type InstanceId, PlatformError, type Resources } from '@agentenv/core';
import { activationFor } from '../activation.ts';
import type {
  Backend,
  KnownInstance,
  LaunchPlan,
  RootFilesystem,
  RunningSandbox,
  StartAdvice,
  StoredSnapshot,
} from '../backend.ts';
import { assertBootable, assertRestorable, sameFingerprint } from '../fingerprint.ts';
import { GUEST_ADDRESSING } from '../network/addressing.ts';
import { createSlotVisit, type SlotVisit } from '../slot-visit.ts';
import { bootImage, type GuestImage } from './guest.ts';
import { createFakeRunning } from './running.ts';
import { readDisk, readManifest, readSnapshot, writeSnapshot } from './snapshot.ts';
import type { FakeMachine, FakeWorld } from './world.ts';

export interface FakeBackendOptions {
  readonly world: FakeWorld;
  /** Where prepared templates live; a name in the world's artifact store. */
  readonly templates?: string;
  /** What this build of the fake calls itself; another one refuses its captures. */
  readonly fingerprint?: Readonly<Record<string, string>>;
}

const NAME = 'fake';
const TEMPLATE_KEY = new Uint8Array(16);

/** A backend without machines: deterministic, in memory, second implementation of the same contract. */
export function createFakeBackend({
  world,
  templates = '/fake/templates',
  fingerprint = { engine: 'fake-1' },
}: FakeBackendOptions): Backend {
  const running = new Map<InstanceId, RunningSandbox>();
  const preparing = new Map<string, Promise<StoredSnapshot>>();
  const warmed = new Set<string>();
  let hits = 0;
  let misses = 0;
  let disposed = false;

  async function prepare(rootfs: RootFilesystem, resources: Resources, directory: string): Promise<StoredSnapshot> {
    const cached = await readManifest(world.artifacts, directory);
    if (cached !== undefined && sameFingerprint(cached.fingerprint, fingerprint))
      return { directory, manifest: cached };
    await world.faults.pass('prepare');
    const facts = { backend: NAME, fingerprint, resources, rootfs, channelKey: TEMPLATE_KEY };
    const image = bootImage({ clock: world.clock, bootId: world.nextBootId() });
    const manifest = await writeSnapshot(world.artifacts, directory, image, {
      ...facts,
      contents: 'full',
      createdAt: world.clock.now(),
    });
    return { directory, manifest };
  }

  /** The machine is this server's from now on. */
  function hold(
    machine: FakeMachine,
    { resources, channelKey }: Pick<LaunchPlan, 'resources' | 'channelKey'>,
    visit: SlotVisit,
  ): RunningSandbox {
    const { guest, instanceId, rootfs, slot } = machine;
    const facts = { backend: NAME, fingerprint, resources, rootfs, channelKey };
    const sandbox = createFakeRunning({
      world,
      machine,
      writeSnapshot: (directory, contents) =>
        writeSnapshot(world.artifacts, directory, guest.image(), { ...facts, contents, createdAt: world.clock.now() }),
      async releaseSlot() {
        await visit.end();
        slot.release();
      },
      onGone: () => running.delete(instanceId),
    });
    running.set(instanceId, sandbox);
    return sandbox;
  }

  /** A wanted machine that is there goes on here; one that was stopped for a capture is let go. */
  function adopt(known: KnownInstance): RunningSandbox | undefined {
    const machine = world.machines.get(known.instanceId);
    if (known.wanted === 'ended' || machine === undefined) return undefined;
    if (known.wanted === 'running-unless-held' && machine.guest.standsStill) return undefined;
    if (machine.engine !== known.identity?.engine) return undefined;
    machine.policy = known.network;
    const visit = createSlotVisit();
    visit.takeOver(known);
    const sandbox = hold(machine, known, visit);
    machine.guest.go();
    return sandbox;
  }

  async function start(
    image: (advice: StartAdvice) => Promise<GuestImage>,
    rootfs: { readonly path: string },
    plan: LaunchPlan,
    signal: AbortSignal | undefined,
  ): Promise<RunningSandbox> {
    if (disposed) throw new PlatformError('unavailable', 'the backend is shut down');
    let machine: FakeMachine | undefined;
    const slot = world.slots.take(plan.instanceId);
    const visit = createSlotVisit();
    const releaseSlot = async (): Promise<void> => {
      await visit.end();
      slot.release();
    };
    try {
      signal?.throwIfAborted();
      const advice = await visit.begin(plan, slot, signal ?? new AbortController().signal);
      await world.faults.pass('start', signal);
      const { sandboxId, instanceId, network: policy } = plan;
      machine = world.launch({ sandboxId, instanceId, policy, rootfs, slot, image: await image(advice) });
      await world.faults.pass('activate', signal);
      machine.guest.activate(activationFor(plan, GUEST_ADDRESSING));
      machine.guest.go();
      await machine.guest.running(signal);
      signal?.throwIfAborted();
    } catch (error) {
      machine?.end('stopped', 'the start failed');
      await releaseSlot();
      throw PlatformError.fromUnknown(error, 'the sandbox could not be started');
    }
    return hold(machine, plan, visit);
  }

  return {
    name: NAME,
    async probe() {
      return {
        usable: true,
        reasons: ['keeps sandboxes in memory and runs no real program'],
        remedies: ['use it for tests only'],
        isolation: 'none',
        accelerator: 'native',
        memorySnapshots: true,
        kernelArguments: true,
        speedClass: 'native',
      };
    },
    async prepareTemplate(rootfs, resources, signal) {
      signal?.throwIfAborted();
      const { vcpus, memoryMB, diskSizeMB } = resources;
      const directory = `${templates}/${rootfs.digest}-${vcpus}-${memoryMB}-${diskSizeMB}`;
      let pending = preparing.get(directory);
      if (pending === undefined) {
        pending = prepare(rootfs, resources, directory).finally(() => preparing.delete(directory));
        preparing.set(directory, pending);
      }
      return pending;
    },
    warm(snapshot) {
      warmed.add(snapshot.directory);
    },
    create: (rootfs, plan, signal) =>
      start(
        async ({ kernelArguments }) => bootImage({ clock: world.clock, bootId: world.nextBootId(), kernelArguments }),
        rootfs,
        plan,
        signal,
      ),
    async boot(snapshot, plan, signal) {
      assertBootable(snapshot.manifest, NAME);
      const boot = async ({ kernelArguments }: StartAdvice): Promise<GuestImage> => {
        const disk = await readDisk(world.artifacts, snapshot);
        return bootImage({ clock: world.clock, bootId: world.nextBootId(), kernelArguments, disk });
      };
      return start(boot, snapshot.manifest.rootfs, plan, signal);
    },
    async requireRestorable(manifest) {
      assertRestorable(manifest, { backend: NAME, fingerprint });
    },
    async restore(snapshot, plan, signal) {
      assertRestorable(snapshot.manifest, { backend: NAME, fingerprint });
      if (warmed.has(snapshot.directory)) hits++;
      else misses++;
      return start(() => readSnapshot(world.artifacts, snapshot), snapshot.manifest.rootfs, plan, signal);
    },
    async reconcile(known) {
      const adopted = known.flatMap((instance) => adopt(instance) ?? []);
      const left = [...world.machines.values()].filter(({ instanceId }) => !running.has(instanceId));
      for (const machine of left) {
        // Nobody of the former server gives its slot back.
        machine.holder = undefined;
        machine.end('stopped', 'left behind by a former server');
      }
      const freed = world.slots.keepOnly(new Set(running.keys()));
      const ids = new Set(known.map(({ instanceId }) => instanceId));
      const endedKnown = freed.filter((instanceId) => ids.has(instanceId));
      return { ended: left.length, endedKnown, adopted };
    },
    status: () => ({
      pool: { ready: warmed.size, target: warmed.size, hits, misses },
      engines: { ready: 0, target: 0, hits: 0, misses: 0 },
    }),
    async abandon() {
      running.clear();
    },
    async [Symbol.asyncDispose]() {
      disposed = true;
      await Promise.all([...running.values()].map((sandbox) => sandbox.stop()));
    },
  };
}
