import type { Clock, Log } from '@agentenv/core';
import type { LifecycleMetrics } from './lifecycle-metrics.ts';
import type { SandboxEntry } from './sandbox-table.ts';

/**
 * Releases what the generation of a sandbox holds while the sandbox stays: after a pause, and after a resume that failed.
 * What cannot be released is tried again, here and by whoever needs it gone.
 */
export interface HeldRelease extends Disposable {
  /** Never rejects; false: something is still held. */
  release(entry: SandboxEntry): Promise<boolean>;
}

const LONGEST_RETRY_MS = 60_000;

export function createHeldRelease(deps: {
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Pick<LifecycleMetrics, 'releaseFailed'>;
  readonly retryMs: number;
}): HeldRelease {
  const retries = new Map<SandboxEntry, Disposable>();
  let disposed = false;

  async function release(entry: SandboxEntry, attempt: number): Promise<boolean> {
    const { held } = entry;
    retries.get(entry)?.[Symbol.dispose]();
    retries.delete(entry);
    const failure = await held.unwind();
    if (failure === undefined) return true;
    const sandboxId = entry.record.id;
    deps.metrics.releaseFailed(failure.step);
    deps.log.error({ sandboxId, step: failure.step, err: failure.error }, 'what a sandbox held could not be released');
    if (!disposed) {
      const wait = Math.min(LONGEST_RETRY_MS, deps.retryMs * 2 ** attempt);
      const timer = deps.clock.timer(wait, () => {
        retries.delete(entry);
        // One that is ending releases it itself; one that runs again holds something else.
        if (entry.held === held && entry.ending === undefined) void release(entry, attempt + 1);
      });
      retries.set(entry, timer);
    }
    return false;
  }

  return {
    release: (entry) => release(entry, 0),
    [Symbol.dispose]() {
      disposed = true;
      for (const timer of retries.values()) timer[Symbol.dispose]();
      retries.clear();
    },
  };
}
