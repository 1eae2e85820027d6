import { stat } from 'node:fs/promises';
import { type CaptureId, PlatformError } from '@agentenv/core';
import type { CaptureStore } from '@agentenv/storage';

/**
 * Refuses to make a new ledger at `path` beside captures that are complete: only the former one knew what they are, and a
 * start removes every capture its ledger does not name. `conflict`, naming both; nothing was touched then.
 */
export async function requireLedger(path: string, captures: Pick<CaptureStore, 'list' | 'open'>): Promise<void> {
  if (await hasContents(path)) return;
  for (const name of await captures.list()) {
    if (!(await isComplete(captures, name as CaptureId))) continue;
    throw new PlatformError(
      'conflict',
      `the ledger ${path} is gone, but captures it named are there: put it back, or move the capture ${name} and its neighbours away`,
      { details: { path, capture: name } },
    );
  }
}

/** False without a manifest, which is written last: nobody could want that back. One that cannot be read may be whole. */
async function isComplete(captures: Pick<CaptureStore, 'open'>, id: CaptureId): Promise<boolean> {
  try {
    await captures.open(id);
    return true;
  } catch (error) {
    const cause = error instanceof Error ? error.cause : undefined;
    return !(cause instanceof Error && 'code' in cause && cause.code === 'ENOENT');
  }
}

/** A ledger is never empty once it was opened; one that is was about to be made for the first time, or was cut short. */
async function hasContents(path: string): Promise<boolean> {
  try {
    return (await stat(path)).size > 0;
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return false;
    throw new PlatformError('internal', 'the ledger cannot be opened', { details: { path }, cause: error });
  }
}
