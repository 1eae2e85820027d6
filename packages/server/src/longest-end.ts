import type { Config } from './config/schema.ts';
import { DEFAULT_ORCHESTRATOR_CONFIG } from './orchestrator/config.ts';

/** For what comes before and after the sandboxes: listeners, pools, slots, the ledger. Milliseconds. */
const REST_MS = 30_000;

/**
 * How long the end of the server may take before the process ends by itself, milliseconds: longer than everything that
 * has a limit of its own, so that no sandbox is cut off in the middle of the pause it was promised.
 */
export function longestEndMs(config: Pick<Config, 'drain_timeout_secs'>): number {
  return config.drain_timeout_secs * 1000 + DEFAULT_ORCHESTRATOR_CONFIG.shutdownTimeoutMs + REST_MS;
}
