import { DEFAULT_NETWORK_POLICY, type InstanceId, type Resources, type SandboxId } from '@agentenv/core';
import type { LaunchPlan } from '../backend.ts';

/** Plans for sandboxes one after the other, each with an id that begins with `prefix`. */
export function createLaunchPlans(
  prefix: string,
  resources: Resources,
): (overrides?: Partial<LaunchPlan>) => LaunchPlan {
  let serial = 0;
  return (overrides = {}) => {
    const sandboxId = `${prefix}${String(serial++).padStart(12, '0')}` as SandboxId;
    return {
      ...{ sandboxId, templateId: 'base', resources, network: DEFAULT_NETWORK_POLICY, hostname: sandboxId },
      instanceId: crypto.randomUUID() as string as InstanceId,
      channelKey: crypto.getRandomValues(new Uint8Array(16)),
      ...overrides,
    };
  };
}
