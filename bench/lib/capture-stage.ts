import { createRecordingLog } from '@agentenv/core/testing';
import type { Backend, LaunchPlan, StoredSnapshot } from '@agentenv/runtime';
import { createLaunchPlans } from '../../packages/runtime/src/testing/launch-plans.ts';
import { createQemuWorld, type QemuWorld } from '../../packages/runtime/src/testing/qemu-world.ts';

const RESOURCES = { vcpus: 2, memoryMB: 1_024, diskSizeMB: 10_240 };
/** As configured unless told otherwise. */
const SLOTS = { low: 4, high: 16 };

/** What a measurement of captures works with; driven at the level of the backend, without server or ledger. */
export interface Stage {
  readonly world: QemuWorld;
  readonly backend: Backend;
  /** The same host with engines started in advance. */
  readonly pooled: Backend;
  readonly template: StoredSnapshot;
  plan(): LaunchPlan;
  /** Milliseconds the last snapshot's source stood still, from the engine's stop, its processes being frozen, to their thaw. */
  lastHeldMs(): number;
}

/** Opens it upon a template of its own; the stack ends it. */
export async function openStage(stack: AsyncDisposableStack): Promise<Stage> {
  const log = createRecordingLog();
  const world = stack.use(await createQemuWorld({ log, networkPool: SLOTS }));
  const backend = world.open();
  const template = await backend.prepareTemplate(world.artifacts.rootfs.base, RESOURCES);
  const pooled = world.open({ engines: { low: 2, high: 2 } });
  await pooled.prepareTemplate(world.artifacts.rootfs.base, RESOURCES);
  return {
    ...{ world, backend, pooled, template, plan: createLaunchPlans('ibench', RESOURCES) },
    lastHeldMs: () => Number(log.find('info', 'goes on after its snapshot').at(-1)?.fields.heldMs),
  };
}
