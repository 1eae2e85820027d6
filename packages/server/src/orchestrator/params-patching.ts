import { type ExtensionParams, type KeyedQueue, PlatformError, type SandboxRecord } from '@agentenv/core';
import { answerToCaller } from '../hooks/failure.ts';
import type { SandboxHooks } from '../hooks/sandbox-hooks.ts';
import type { RecordKeeper } from './record-keeper.ts';
import { type SandboxAccess, sandboxConflict, takesRequests } from './sandbox-access.ts';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';

/**
 * Lets the custom extension change the parameters of a running sandbox: its answer replaces them and is resolved with.
 * Nothing of the sandbox waits for the extension; of several patches at once the last one written wins. `conflict` when
 * the sandbox does not run, or no longer is the generation the extension was asked for.
 */
export type PatchParams = (id: string, patch: ExtensionParams) => Promise<ExtensionParams>;

export function createParamsPatching(deps: {
  readonly hooks: Pick<SandboxHooks, 'patch'>;
  readonly access: Pick<SandboxAccess, 'live'>;
  readonly queue: KeyedQueue;
  readonly keeper: RecordKeeper;
  readonly table: SandboxTable;
}): PatchParams {
  const { access } = deps;

  /** Snapshots and forks leave it running as far as anybody sees. */
  function stillRuns(id: string, before: SandboxRecord): SandboxEntry {
    const entry = access.live(id);
    const { id: sandboxId, state, instanceId } = entry.record;
    if (!takesRequests(state)) throw sandboxConflict(entry.record);
    if (instanceId === before.instanceId) return entry;
    throw new PlatformError('conflict', `sandbox '${sandboxId}' was paused meanwhile`);
  }

  return async (id, patch) => {
    const entry = access.live(id);
    if (entry.record.state !== 'running') throw sandboxConflict(entry.record);
    const before = entry.record;
    let answer: ExtensionParams;
    try {
      answer = await deps.hooks.patch(before, patch);
    } catch (error) {
      stillRuns(id, before);
      throw answerToCaller('patch', error);
    }
    stillRuns(id, before);
    return await deps.queue.run(id, 'patch', async (signal) => {
      const current = stillRuns(id, before);
      const changed: SandboxRecord = { ...current.record, customExtensionParams: answer };
      await deps.keeper.write(changed, signal);
      signal.throwIfAborted();
      deps.table.update(current, changed);
      return answer;
    });
  };
}
