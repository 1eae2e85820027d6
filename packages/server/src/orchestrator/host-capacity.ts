import { statfs } from 'node:fs/promises';
import { totalmem } from 'node:os';
import type { HostCapacity } from '@agentenv/core';

const MIB = 1024 * 1024;

/** Reads what the host has right now. */
export type HostCapacityProbe = () => Promise<HostCapacity>;

/** Memory of this host, or of the control group the server runs in when that is smaller, bytes. */
export function hostMemory(): { readonly total: number; readonly available: number } {
  const constrained = process.constrainedMemory();
  const total = constrained > 0 ? Math.min(totalmem(), constrained) : totalmem();
  return { total, available: Math.min(total, process.availableMemory()) };
}

/** Memory, and free space of the file system that holds `dataDirectory` (what an unprivileged process may use of it). */
export function createHostCapacityProbe(dataDirectory: string): HostCapacityProbe {
  return async () => {
    const { total, available } = hostMemory();
    const disk = await statfs(dataDirectory);
    return {
      totalMemoryMB: total / MIB,
      availableMemoryMB: available / MIB,
      freeDiskMB: (disk.bavail * disk.bsize) / MIB,
    };
  };
}
