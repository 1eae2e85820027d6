import { STATE_WAIT_MS } from '@agentenv/core';

/** Times in milliseconds unless the name says otherwise. */
export interface OrchestratorConfig {
  /** Longest create from the first ledger write to running; then it fails, is undone and counted. */
  readonly createTimeoutMs: number;
  /** Longest resume from the first ledger write to running; then it is undone and the sandbox is paused as before. */
  readonly resumeTimeoutMs: number;
  /** Longest capture of a sandbox; one that does not even unwind then costs the sandbox its life. */
  readonly captureTimeoutMs: number;
  /** Longest single answer of the ledger. */
  readonly ledgerTimeoutMs: number;
  /** Longest release of one thing a sandbox holds (stopping its engine above all). */
  readonly releaseTimeoutMs: number;
  /** How long an aborted step may unwind before a kill goes on without it (contract/README, "DELETE sandbox"). */
  readonly killGraceMs: number;
  /** How long the engine of a killed sandbox waits for the ledger's note of the kill. */
  readonly killNoteTimeoutMs: number;
  /** How long a request waits for a transition of its sandbox. */
  readonly stateWaitMs: number;
  /** Requests that may wait for one sandbox. */
  readonly maxWaitingPerSandbox: number;
  /** How often deadlines are compared with the wall clock at least (config `orchestrator.auto_evict_interval_ms`). */
  readonly autoEvictIntervalMs: number;
  /**
   * What becomes of a sandbox that its timeout could not pause, however often it was tried: it runs on without a timeout
   * until somebody sets one, is paused without memory, or ends (config `orchestrator.pause_failure`).
   */
  readonly pauseFailure: 'keep' | 'filesystem' | 'kill';
  /** Longest pause of all sandboxes at shutdown. */
  readonly shutdownTimeoutMs: number;
  /** Children of one fork that are started at the same time. */
  readonly forkConcurrency: number;
  /** Sandboxes that are paused at the same time at shutdown. */
  readonly shutdownConcurrency: number;
  /** Sandboxes that are paused, and those that are ended, at the same time because their timeout has passed. */
  readonly expiryConcurrency: number;
  /** Longest clean-up after a former server at start. */
  readonly reconcileTimeoutMs: number;
  /** Between attempts to release what could not be released; doubles up to 60 s. */
  readonly releaseRetryMs: number;
  readonly defaultUser: string;
  readonly defaultWorkdir: string | undefined;
  /** Advertised to clients; the highest whose features all work. */
  readonly envdVersion: string;
}

export const DEFAULT_ORCHESTRATOR_CONFIG: Omit<OrchestratorConfig, 'envdVersion'> = {
  createTimeoutMs: 50_000,
  resumeTimeoutMs: 50_000,
  captureTimeoutMs: 45_000,
  ledgerTimeoutMs: 10_000,
  releaseTimeoutMs: 10_000,
  killGraceMs: 2_000,
  killNoteTimeoutMs: 2_000,
  stateWaitMs: STATE_WAIT_MS,
  maxWaitingPerSandbox: 256,
  autoEvictIntervalMs: 1_000,
  pauseFailure: 'keep',
  shutdownTimeoutMs: 60_000,
  forkConcurrency: 8,
  shutdownConcurrency: 8,
  expiryConcurrency: 4,
  reconcileTimeoutMs: 60_000,
  releaseRetryMs: 1_000,
  defaultUser: 'user',
  defaultWorkdir: undefined,
};
