/** Levels of the log of a sandbox, least important first (contract e2b.md section 5, LogEntry). */
export const SANDBOX_LOG_LEVELS = ['debug', 'info', 'warn', 'error'] as const;

export type SandboxLogLevel = (typeof SANDBOX_LOG_LEVELS)[number];

/**
 * One thing that happened to a sandbox, for its owner to read. Never holds what a process read or wrote, its arguments,
 * its environment, or a token.
 */
export interface SandboxLogEntry {
  readonly level: SandboxLogLevel;
  /** Which part of the platform tells it. */
  readonly logger: 'sandbox' | 'agent' | 'process';
  readonly message: string;
  readonly fields: Readonly<Record<string, string>>;
}

/** Takes the entries of one sandbox, in order. Never fails and never waits. */
export type SandboxJournal = (entry: SandboxLogEntry) => void;

/** Whether an entry of `level` is shown to somebody who asked for `least` and worse. */
export function isAtLeast(level: SandboxLogLevel, least: SandboxLogLevel): boolean {
  return SANDBOX_LOG_LEVELS.indexOf(level) >= SANDBOX_LOG_LEVELS.indexOf(least);
}
