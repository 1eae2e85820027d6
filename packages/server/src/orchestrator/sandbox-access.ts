import { OPERATION_RULES, PlatformError, type SandboxOperation, shorten } from '@agentenv/core';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';

/** Looks sandboxes up for clients, by the rules of the state × operation matrix. */
export interface SandboxAccess {
  /** Throws `not_found` for one that does not exist for clients: one that is being killed does not. */
  live(id: string): SandboxEntry;
  /** The same, and `conflict` naming the state where the matrix says so. */
  allowed(id: string, operation: SandboxOperation): SandboxEntry;
}

export const sandboxNotFound = (id: string): PlatformError =>
  new PlatformError('not_found', `sandbox '${shorten(id, 64)}' not found`);

export function createSandboxAccess(table: Pick<SandboxTable, 'get'>): SandboxAccess {
  function live(id: string): SandboxEntry {
    const entry = table.get(id);
    if (entry === undefined || entry.record.state === 'killing') throw sandboxNotFound(id);
    return entry;
  }
  return {
    live,
    allowed(id, operation) {
      const entry = live(id);
      if (OPERATION_RULES[operation][entry.record.state] === 'conflict') {
        throw new PlatformError('conflict', `sandbox '${entry.record.id}' is ${entry.record.state}`);
      }
      return entry;
    },
  };
}
