import type { SandboxState } from '@agentenv/core';
import type { components } from '@agentenv/protocol/control-plane';
import type { OrchestratorStatus } from '../orchestrator/create-orchestrator.ts';
import type { Build } from './build.ts';
import type { HostUsageProbe } from './host-usage.ts';

type Node = components['schemas']['Node'];

/** Who this host is among others (config `node_identity.*`). */
export interface NodeIdentity {
  readonly nodeId: string;
  readonly clusterId: string;
  /** New with every start. */
  readonly serviceInstanceId: string;
}

/** Tells about this host, for `/nodes`. */
export interface NodeReporter {
  readonly identity: NodeIdentity;
  describe(): Promise<Node>;
}

const MIB = 1024 * 1024;
/** States by how they are counted (agentenv.md section 18). */
const COUNTED_AS = {
  creating: 'starting',
  running: 'running',
  snapshotting: 'running',
  forking: 'running',
  pausing: 'running',
  paused: 'paused',
  resuming: 'starting',
  killing: 'running',
} as const satisfies Record<SandboxState, 'running' | 'starting' | 'paused'>;

export function createNodeReporter(deps: {
  readonly identity: NodeIdentity;
  readonly build: Build;
  readonly host: HostUsageProbe;
  readonly status: () => OrchestratorStatus;
}): NodeReporter {
  const { identity, build, host } = deps;
  return {
    identity,
    async describe() {
      const [machineInfo, usage] = await Promise.all([host.machine(), host.usage()]);
      const { sandboxes, allocated, pausedAllocated, createSuccesses, createFails } = deps.status();
      const counts = countSandboxes(sandboxes);
      return {
        id: identity.nodeId,
        serviceInstanceID: identity.serviceInstanceId,
        clusterID: identity.clusterId,
        // A server that drains does not answer this any more.
        status: 'ready',
        sandboxCount: counts.running,
        sandboxStartingCount: counts.starting,
        sandboxPausedCount: counts.paused,
        createSuccesses,
        createFails,
        ...build,
        machineInfo,
        metrics: {
          ...usage,
          allocatedCPU: allocated.vcpus,
          allocatedMemoryBytes: allocated.memoryMB * MIB,
          pausedAllocatedCPU: pausedAllocated.vcpus,
          pausedAllocatedMemoryBytes: pausedAllocated.memoryMB * MIB,
        },
      };
    },
  };
}

function countSandboxes(byState: Readonly<Record<SandboxState, number>>) {
  const counts = { running: 0, starting: 0, paused: 0 };
  for (const [state, count] of Object.entries(byState)) counts[COUNTED_AS[state as SandboxState]] += count;
  return counts;
}
