import { type Clock, callWithin, type KeyedQueue, type Log, PlatformError, type SandboxRecord } from '@agentenv/core';
import type { RunningSandbox } from '@agentenv/runtime';
import type { OrchestratorConfig } from './config.ts';
import type { EventPublisher } from './event-publisher.ts';
import type { EgressRules } from './orchestrator.ts';
import type { OwnerLog } from './owner-log.ts';
import type { RecordKeeper } from './record-keeper.ts';
import type { SandboxAccess } from './sandbox-access.ts';
import type { SandboxTable } from './sandbox-table.ts';

/**
 * Replaces the egress rules of a running sandbox whole, as a step of its own queue: on disk first, then in force. When
 * either fails the former rules stay, in force and on disk (contract agentenv.md 5.8).
 */
export type ChangeNetwork = (id: string, egress: EgressRules) => Promise<void>;

export function createNetworkChanges(deps: {
  readonly table: SandboxTable;
  readonly access: SandboxAccess;
  readonly queue: KeyedQueue;
  readonly keeper: RecordKeeper;
  readonly clock: Clock;
  readonly log: Log;
  readonly owner: Pick<OwnerLog, 'networkChanged' | 'networkFailed'>;
  readonly events: EventPublisher;
  readonly config: Pick<OrchestratorConfig, 'releaseTimeoutMs' | 'killGraceMs'>;
}): ChangeNetwork {
  const { clock, config, keeper, log, owner, table } = deps;

  function apply(running: RunningSandbox, { network }: SandboxRecord, signal: AbortSignal): Promise<void> {
    // The grace lets an aborted transaction end before anything else is applied.
    const bounds = {
      ...{ what: 'the network', timeoutMs: config.releaseTimeoutMs, graceMs: config.killGraceMs, signal },
    };
    return callWithin(clock, bounds, (aborted) => running.applyNetwork(network, aborted));
  }

  /** A failure may have come after the effect, so the former rules are written and applied again. */
  async function restore(running: RunningSandbox, former: SandboxRecord, signal: AbortSignal): Promise<void> {
    const steps = { record: keeper.write(former, signal), rules: apply(running, former, signal) };
    for (const [step, done] of Object.entries(steps)) {
      await done.catch((err: unknown) => {
        log.error({ sandboxId: former.id, step, err }, 'the former network policy could not be restored');
      });
    }
  }

  return async (id, egress) => {
    deps.access.allowed(id, 'network');
    await deps.queue.run(id, 'network', async (signal) => {
      const entry = deps.access.allowed(id, 'network');
      const { generation, record: former } = entry;
      if (generation === undefined) throw new PlatformError('internal', 'a sandbox that runs has no generation');
      const changed: SandboxRecord = { ...former, network: { ...former.network, ...egress } };
      try {
        await keeper.write(changed, signal);
        await apply(generation.running, changed, signal);
      } catch (error) {
        // Whoever aborted it ends the sandbox.
        if (signal.aborted) throw signal.reason;
        log.error({ sandboxId: former.id, err: error }, 'a network policy could not be applied');
        await restore(generation.running, former, signal);
        owner.networkFailed(former.id);
        throw new PlatformError('internal', 'the network policy could not be applied; the former one stays', {
          cause: error,
        });
      }
      signal.throwIfAborted();
      table.update(entry, changed);
      owner.networkChanged(changed);
      deps.events.publish(changed, { type: 'sandbox.lifecycle.updated', updated: 'network', deadline: undefined });
    });
  };
}
