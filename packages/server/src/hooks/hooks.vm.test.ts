import { createQemuWorld } from '@agentenv/runtime/testing';
import { describeHookOperations } from '../testing/hook-operations-suite.ts';
import type { HookHost } from '../testing/hook-world.ts';
import { describeHooks } from '../testing/hooks-suite.ts';

async function openHost(): Promise<HookHost> {
  const world = await createQemuWorld();
  return {
    open: () => world.open(),
    rootfs: world.artifacts.rootfs.base,
    resources: { vcpus: 2, memoryMB: 512, diskSizeMB: 4_096 },
    slotsInUse: () => world.slots.status().inUse,
    [Symbol.asyncDispose]: () => world[Symbol.asyncDispose](),
  };
}

describeHooks('qemu', openHost, [describeHookOperations]);
