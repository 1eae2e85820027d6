import type { Clock, InstanceId, NetworkPolicy, SandboxId } from '@agentenv/core';
import { PlatformError } from '@agentenv/core';
import type { LiveSlot, RuntimeEnd, RuntimeEndReason } from '../backend.ts';
import { type ArtifactStore, createMemoryArtifacts } from './artifacts.ts';
import { createFaults, type Faults } from './faults.ts';
import { FakeGuest, type GuestImage } from './guest.ts';

/** A machine that exists on the fake host, whoever knows about it. */
export interface FakeMachine {
  readonly sandboxId: SandboxId;
  readonly instanceId: InstanceId;
  /** Unique name of its engine process. */
  readonly engine: string;
  readonly guest: FakeGuest;
  readonly ended: Promise<RuntimeEnd>;
  /** The read-only image it was started from. */
  readonly rootfs: { readonly path: string };
  readonly slot: FakeSlot;
  policy: NetworkPolicy;
  /** Who looks after it: the server that started it, or the one that adopted it. */
  holder: object | undefined;
  /** Ends it: it leaves the host at once. */
  end(reason: RuntimeEndReason, detail: string): void;
}

/** Network slots of the fake host: the lowest free one is taken, as a pool would do. */
export interface FakeSlots {
  take(instanceId: InstanceId): FakeSlot;
  /** Releases all but those of these; answers whose they were. */
  keepOnly(instances: ReadonlySet<InstanceId>): readonly InstanceId[];
  readonly inUse: number;
}

export interface FakeSlot extends LiveSlot {
  /** Idempotent. */
  release(): void;
}

/** The host of fake backends: what survives when a server dies. One per simulated machine. */
export interface FakeWorld {
  readonly clock: Clock;
  readonly artifacts: ArtifactStore;
  readonly faults: Faults;
  readonly machines: ReadonlyMap<InstanceId, FakeMachine>;
  readonly slots: FakeSlots;
  /** The id of the next boot on this host. */
  nextBootId(): string;
  /** The machine of a sandbox; throws `not_found`. */
  machineOf(sandboxId: SandboxId | string): FakeMachine;
  launch(request: {
    readonly sandboxId: SandboxId;
    readonly instanceId: InstanceId;
    readonly image: GuestImage;
    readonly policy: NetworkPolicy;
    readonly rootfs: { readonly path: string };
    readonly slot: FakeSlot;
  }): FakeMachine;
}

export interface FakeWorldOptions {
  readonly clock: Clock;
  /** In memory unless given. */
  readonly artifacts?: ArtifactStore;
}

const POWER_END = { poweroff: 'guest-poweroff', reboot: 'guest-reboot', panic: 'guest-panic' } as const;

/** A fake machine has no network; its namespace is one that exists. */
const NAMESPACE = '/proc/self/ns/net';

function createFakeSlots(): FakeSlots {
  const taken = new Map<number, InstanceId>();
  return {
    take(instanceId) {
      let index = 0;
      while (taken.has(index)) index++;
      taken.set(index, instanceId);
      let held = true;
      return {
        networkNamespacePath: NAMESPACE,
        hostInteractionIp: `10.11.${index >> 8}.${index & 255}`,
        release() {
          if (held && taken.get(index) === instanceId) taken.delete(index);
          held = false;
        },
      };
    },
    keepOnly(instances) {
      const left = [...taken].filter(([, instanceId]) => !instances.has(instanceId));
      for (const [index] of left) taken.delete(index);
      return left.map(([, instanceId]) => instanceId);
    },
    get inUse() {
      return taken.size;
    },
  };
}

export function createFakeWorld({ clock, artifacts = createMemoryArtifacts() }: FakeWorldOptions): FakeWorld {
  const machines = new Map<InstanceId, FakeMachine>();
  let engines = 0;
  let boots = 0;

  return {
    clock,
    artifacts,
    faults: createFaults(clock),
    machines,
    slots: createFakeSlots(),
    nextBootId: () => `fake-boot-${++boots}`,
    machineOf(sandboxId) {
      for (const machine of machines.values()) if (machine.sandboxId === sandboxId) return machine;
      throw new PlatformError('not_found', `no machine runs sandbox ${sandboxId}`);
    },
    launch({ sandboxId, instanceId, image, policy, rootfs, slot }) {
      if (machines.has(instanceId)) throw new PlatformError('conflict', `instance ${instanceId} already runs`);
      const ended = Promise.withResolvers<RuntimeEnd>();
      const guest = new FakeGuest(image, {
        clock,
        onPower: (event) => machine.end(POWER_END[event], `the guest asked for it: ${event}`),
      });
      const machine: FakeMachine = {
        sandboxId,
        instanceId,
        engine: `fake-${++engines}`,
        guest,
        ended: ended.promise,
        policy,
        rootfs,
        slot,
        holder: undefined,
        end(reason, detail) {
          if (machines.get(instanceId) !== machine) return;
          machines.delete(instanceId);
          guest.lose('disconnected', detail);
          ended.resolve({ reason, detail });
        },
      };
      machines.set(instanceId, machine);
      return machine;
    },
  };
}
