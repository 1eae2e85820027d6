import { PlatformError } from './errors.ts';
import type { Resources } from './sandbox.ts';

/** What the host has at the moment of a decision. */
export interface HostCapacity {
  /** MiB of memory the host (or its cgroup) has. */
  readonly totalMemoryMB: number;
  /** MiB that could be used without swapping. */
  readonly availableMemoryMB: number;
  /** MiB free on the file system of the data directory. */
  readonly freeDiskMB: number;
}

export interface AdmissionLimits {
  /** Part of a sandbox's `memoryMB` that is counted against host memory (config `orchestrator.memory_commit_ratio`). */
  readonly memoryCommitRatio: number;
  /** Part of a sandbox's sparse `diskSizeMB` that is counted against free disk space (config `orchestrator.disk_commit_ratio`). */
  readonly diskCommitRatio: number;
  /** undefined: no limit on their number (config `orchestrator.max_sandboxes`). */
  readonly maxSandboxes: number | undefined;
  /** MiB of host memory that sandboxes never get. */
  readonly hostReserveMB: number;
  /** Part of host memory that must really be available after an admission. */
  readonly minAvailableMemoryRatio: number;
  /** MiB of disk space that must stay free. */
  readonly minFreeDiskMB: number;
  /** Seconds a refused client is told to wait. */
  readonly retryAfterSeconds: number;
}

export const DEFAULT_ADMISSION_LIMITS: AdmissionLimits = {
  memoryCommitRatio: 0.15,
  diskCommitRatio: 0.05,
  maxSandboxes: undefined,
  hostReserveMB: 2048,
  minAvailableMemoryRatio: 0.1,
  minFreeDiskMB: 1024,
  retryAfterSeconds: 5,
};

/** A place on the host, taken at decision time. */
export interface Reservation {
  readonly resources: Resources;
  /** The sandbox runs: what it uses shows in the host's own figures from now on. */
  settle(): void;
  /** Gives the place back; further calls do nothing. */
  release(): void;
}

export interface AdmissionStatus {
  readonly sandboxes: number;
  /** Reserved and not yet settled. */
  readonly starting: number;
  readonly allocatedVcpus: number;
  /** Sum of `memoryMB`. */
  readonly allocatedMemoryMB: number;
  /** Sum of what is counted against host memory, MiB. */
  readonly committedMemoryMB: number;
  /** Sum of what is counted against free disk, MiB. */
  readonly committedDiskMB: number;
}

/** Decides whether the host can take one more sandbox, and keeps its place from the moment of the decision. */
export interface Admission {
  /** Synchronous, so that no two decisions see the same free place. Refused: `capacity` naming the limit, with `Retry-After`. */
  reserve(resources: Resources, host: HostCapacity): Reservation;
  /** The place of a sandbox that runs already, as after a restart of the server: never refused, settled. */
  occupy(resources: Resources): Reservation;
  status(): AdmissionStatus;
}

interface Held {
  readonly resources: Resources;
  settled: boolean;
}

export function createAdmission(limits: AdmissionLimits): Admission {
  const held = new Set<Held>();
  const memoryCommit = (resources: Resources): number => resources.memoryMB * limits.memoryCommitRatio;
  const diskCommit = (resources: Resources): number => resources.diskSizeMB * limits.diskCommitRatio;

  function sum(part: (item: Held) => number): number {
    let total = 0;
    for (const item of held) total += part(item);
    return total;
  }

  function refuse(limit: string, why: string, details: Record<string, number>): never {
    throw new PlatformError('capacity', `no capacity on this host: ${limit}: ${why}`, {
      details: { limit, ...details },
      retryAfterSeconds: limits.retryAfterSeconds,
    });
  }

  function check(resources: Resources, host: HostCapacity): void {
    if (limits.maxSandboxes !== undefined && held.size >= limits.maxSandboxes) {
      refuse('orchestrator.max_sandboxes', `${held.size} of ${limits.maxSandboxes} sandboxes exist`, {
        sandboxes: held.size,
      });
    }
    const asked = memoryCommit(resources);
    const committed = sum((item) => memoryCommit(item.resources));
    const usable = Math.max(0, host.totalMemoryMB - limits.hostReserveMB);
    if (committed + asked > usable) {
      refuse(
        'orchestrator.memory_commit_ratio',
        `${Math.round(committed)} of ${Math.round(usable)} MiB are committed, ${Math.round(asked)} more are needed`,
        { committedMemoryMB: committed, usableMemoryMB: usable },
      );
    }
    const pending = sum((item) => (item.settled ? 0 : memoryCommit(item.resources)));
    const floor = host.totalMemoryMB * limits.minAvailableMemoryRatio;
    if (host.availableMemoryMB - pending - asked < floor) {
      refuse(
        'free memory',
        `${Math.round(host.availableMemoryMB)} MiB are available, ${Math.round(pending + asked)} are needed and ${Math.round(floor)} must stay`,
        { availableMemoryMB: host.availableMemoryMB, minAvailableMemoryMB: floor },
      );
    }
    const disk = sum((item) => diskCommit(item.resources)) + diskCommit(resources);
    if (host.freeDiskMB - disk < limits.minFreeDiskMB) {
      refuse(
        'free disk space',
        `${Math.round(host.freeDiskMB)} MiB are free, ${Math.round(disk)} are counted for sandboxes and ${limits.minFreeDiskMB} must stay`,
        { freeDiskMB: host.freeDiskMB, committedDiskMB: disk },
      );
    }
  }

  function take(item: Held): Reservation {
    held.add(item);
    return {
      resources: item.resources,
      settle() {
        item.settled = true;
      },
      release() {
        held.delete(item);
      },
    };
  }

  return {
    reserve(resources, host) {
      check(resources, host);
      return take({ resources, settled: false });
    },
    occupy: (resources) => take({ resources, settled: true }),
    status: () => ({
      sandboxes: held.size,
      starting: sum((item) => (item.settled ? 0 : 1)),
      allocatedVcpus: sum((item) => item.resources.vcpus),
      allocatedMemoryMB: sum((item) => item.resources.memoryMB),
      committedMemoryMB: sum((item) => memoryCommit(item.resources)),
      committedDiskMB: sum((item) => diskCommit(item.resources)),
    }),
  };
}
