import {
  OPERATION_RULES,
  PlatformError,
  type SandboxOperation,
  type SandboxRecord,
  type SandboxState,
  shorten,
  visibleState,
} from '@agentenv/core';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';

/** Looks sandboxes up for clients, by the rules of the state × operation matrix. */
export interface SandboxAccess {
  /** Throws `not_found` for one that no operation can reach: one that is being killed. */
  live(id: string): SandboxEntry;
  /** Throws `not_found` for one that clients are not told of; one that is being made, too. */
  visible(id: string): SandboxEntry;
  /** The same, and `conflict` naming the state where the matrix says so. */
  allowed(id: string, operation: SandboxOperation): SandboxEntry;
}

export const sandboxNotFound = (id: string): PlatformError =>
  new PlatformError('not_found', `sandbox '${shorten(id, 64)}' not found`);

export const sandboxConflict = ({ id, state }: SandboxRecord): PlatformError =>
  new PlatformError('conflict', `sandbox '${id}' is ${state}`);

/** Under a snapshot or a fork a sandbox runs on (contract/README, "sandbox under snapshot or fork"). */
export function takesRequests(state: SandboxState): boolean {
  return state === 'running' || state === 'snapshotting' || state === 'forking';
}

export function createSandboxAccess(table: Pick<SandboxTable, 'get'>): SandboxAccess {
  function live(id: string): SandboxEntry {
    const entry = table.get(id);
    if (entry === undefined || entry.record.state === 'killing') throw sandboxNotFound(id);
    return entry;
  }
  return {
    live,
    visible(id) {
      const entry = live(id);
      if (visibleState(entry.record.state) === undefined) throw sandboxNotFound(id);
      return entry;
    },
    allowed(id, operation) {
      const entry = live(id);
      if (OPERATION_RULES[operation][entry.record.state] === 'conflict') {
        throw sandboxConflict(entry.record);
      }
      return entry;
    },
  };
}
