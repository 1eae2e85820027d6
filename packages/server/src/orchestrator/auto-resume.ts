import { PlatformError, type SandboxRecord } from '@agentenv/core';
import type { SandboxAccess } from './sandbox-access.ts';

export interface AutoResumeDependencies {
  readonly access: Pick<SandboxAccess, 'live'>;
  /** Resumes it for so many seconds, or joins the resume that is under way. */
  readonly resume: (id: string, timeoutSeconds: number) => Promise<unknown>;
  /** Resolves when what is under way for it is done. */
  readonly settled: (id: string) => Promise<unknown>;
}

/**
 * Resumes a paused sandbox because a request for it came, for as long as it was last asked to run (contract/README,
 * "auto-resume"). Any number of requests at once cause one resume and share its outcome. `conflict` when it may not be
 * resumed by traffic, or is in no state to be.
 */
export type AutoResume = (id: string) => Promise<void>;

export function createAutoResume({ access, resume, settled }: AutoResumeDependencies): AutoResume {
  const underWay = new Map<string, Promise<void>>();

  async function wake(id: string): Promise<void> {
    const { record } = access.live(id);
    if (!record.autoResume) throw new PlatformError('conflict', `sandbox '${record.id}' is not resumed by traffic`);
    if (record.state === 'pausing') await settled(id);
    const { record: now } = access.live(id);
    // A pause that failed leaves it running.
    if (now.state === 'running') return;
    if (!isWakeable(now)) throw new PlatformError('conflict', `sandbox '${record.id}' is paused without memory`);
    try {
      await resume(id, record.timeoutSeconds);
    } catch (error) {
      // Somebody else resumed it meanwhile: there is nothing left to do.
      if (access.live(id).record.state === 'running') return;
      throw error;
    }
  }

  return (id) => {
    const running = underWay.get(id);
    if (running !== undefined) return running;
    const waking = wake(id).finally(() => underWay.delete(id));
    underWay.set(id, waking);
    return waking;
  };
}

/**
 * Whether a request may resume it, once the pause or the resume that is under way is done. One without memory would boot, and
 * what the request is meant for would not be there (contract e2b.md 6.4). What a pause keeps is known at its end.
 */
export function isWakeable({ state, autoResume, captureKind }: SandboxRecord): boolean {
  if (!autoResume) return false;
  return state === 'pausing' || ((state === 'paused' || state === 'resuming') && captureKind === 'full');
}
