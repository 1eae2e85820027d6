import type { ErrorCode } from '@agentenv/protocol';
import type { RuntimeEndReason } from '@agentenv/runtime';

/** Why a sandbox ended, as a closed set for labels. */
export type EndReason =
  | 'deleted'
  | 'expired'
  | 'shutdown'
  | 'create-failed'
  | 'overdue'
  | 'capture-lost'
  | 'pause-failed'
  | RuntimeEndReason;

/** Counters of the life cycle, given in by whoever exports metrics. */
export interface LifecycleMetrics {
  createSucceeded(): void;
  createFailed(code: ErrorCode): void;
  pauseSucceeded(): void;
  /** The sandbox runs on, or has ended. */
  pauseFailed(code: ErrorCode): void;
  resumeSucceeded(): void;
  /** The sandbox is paused as before. */
  resumeFailed(code: ErrorCode): void;
  /** A running sandbox was captured for a snapshot or a fork, and goes on. */
  liveCaptureSucceeded(operation: 'snapshot' | 'fork'): void;
  /** The sandbox runs on, or has ended. */
  liveCaptureFailed(operation: 'snapshot' | 'fork', code: ErrorCode): void;
  /** Its timeout could not pause a sandbox, however often it was tried. */
  autoPauseGivenUp(): void;
  ended(reason: EndReason): void;
  /** A transition was older than its own deadline. */
  overdue(state: string): void;
  /** Something a sandbox held could not be released and will be tried again. */
  releaseFailed(step: string): void;
  /** Generations a former server left behind. */
  reconciled(count: number): void;
  /** Sandboxes of a former server that run on. */
  adopted(count: number): void;
}
