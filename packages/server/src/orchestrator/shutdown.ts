import { type Clock, callWithin, type KeyedQueue, type Log, PlatformError } from '@agentenv/core';
import { mapBounded } from './bounded-map.ts';
import type { OrchestratorConfig } from './config.ts';
import type { Ending } from './ending.ts';
import type { Pausing } from './pausing.ts';
import type { Resuming } from './resuming.ts';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';

/** What becomes of the sandboxes when the server ends. Never rejects; what could not be done is an error in the log. */
export interface Shutdown {
  /** In order: what runs is paused, what is on its way from or to a pause as well, and what has not run yet ends. */
  pauseAll(): Promise<void>;
  /** They are left as they are, when what is under way has come to its end. */
  settleAll(): Promise<void>;
}

export interface ShutdownDependencies {
  readonly table: SandboxTable;
  readonly queue: KeyedQueue;
  readonly pausing: Pausing;
  readonly resuming: Pick<Resuming, 'rollBack'>;
  readonly ending: Ending;
  /** What goes on behind the queues of the sandboxes: forks, publications. */
  readonly background: readonly { settled(): Promise<void> }[];
  readonly clock: Clock;
  readonly log: Log;
  readonly config: Pick<OrchestratorConfig, 'shutdownTimeoutMs' | 'shutdownConcurrency'>;
}

/** How often a pause that fails is tried again (agentenv.md section 6). */
const PASSES = 3;

export const shuttingDown = (): PlatformError =>
  new PlatformError('unavailable', 'the server is shutting down', { retryAfterSeconds: 5 });

export function createShutdown(deps: ShutdownDependencies): Shutdown {
  const { clock, config, log, queue, table } = deps;

  /** After what is under way; true: it is paused or gone. */
  async function pause(entry: SandboxEntry): Promise<boolean> {
    const { id } = entry.record;
    try {
      if (entry.record.state === 'resuming') {
        await queue.preempt(id, 'shutdown', shuttingDown(), (signal) => deps.resuming.rollBack(entry, signal));
      }
      await queue.run(id, 'shutdown', async (signal) => {
        if (entry.record.state === 'running' && table.get(id) === entry) await deps.pausing(entry, 'full', signal);
      });
    } catch {
      // Logged and counted where it failed.
    }
    return table.get(id) !== entry || entry.record.state === 'paused';
  }

  async function leave(entry: SandboxEntry): Promise<void> {
    if (entry.record.state !== 'creating' && entry.record.state !== 'killing') {
      for (let pass = 0; pass < PASSES; pass++) if (await pause(entry)) return;
    }
    const detail = 'the server is shutting down';
    await deps.ending.end(entry, { event: 'kill', reason: 'shutdown', detail, error: shuttingDown() });
  }

  async function within(what: string, failure: string, work: () => Promise<unknown>): Promise<void> {
    try {
      await callWithin(clock, { what, timeoutMs: config.shutdownTimeoutMs, graceMs: 0 }, async () => {
        await work();
        await Promise.all(deps.background.map((job) => job.settled()));
      });
    } catch (error) {
      log.error({ err: error }, failure);
    }
  }

  async function settle(entry: SandboxEntry): Promise<void> {
    try {
      await (entry.ending ?? queue.run(entry.record.id, 'shutdown', async () => undefined));
    } catch {
      // Whatever became of it, it is over.
    }
    entry.generation?.sampling[Symbol.dispose]();
  }

  async function pauseAll(): Promise<void> {
    await within('the pause of all sandboxes', 'the sandboxes were not paused in time', () =>
      mapBounded(table.all(), config.shutdownConcurrency, leave),
    );
    const left = table.all().filter(({ record, held }) => record.state !== 'paused' || held.size > 0);
    if (left.length > 0) {
      const ids = left.map((entry) => entry.record.id);
      log.error({ sandboxIds: ids }, 'sandboxes could not be paused; the next start looks after them');
    }
  }

  return {
    pauseAll,
    settleAll: () =>
      within('what is under way', 'not everything came to its end in time', () => Promise.all(table.all().map(settle))),
  };
}
