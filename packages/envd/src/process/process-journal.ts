import type { Clock, SandboxJournal, SandboxLogEntry } from '@agentenv/core';
import type { ProcessRecord } from './process-record.ts';

/**
 * Tells the log of a sandbox that a process has started, and later how it ended. Of its command line only the program is
 * told: arguments, environment and whatever it reads and writes may hold secrets.
 */
export function tellProcess(
  { clock, journal }: { readonly clock: Clock; readonly journal: SandboxJournal },
  record: Pick<ProcessRecord, 'pid' | 'config' | 'pty' | 'reaped' | 'end'>,
  user: string,
): void {
  const startedAt = clock.monotonic();
  const facts = { pid: String(record.pid), cmd: record.config.cmd };
  const tell = (level: SandboxLogEntry['level'], message: string, more: Readonly<Record<string, string>>): void =>
    journal({ level, logger: 'process', message, fields: { ...facts, ...more } });

  tell('info', 'process started', { user, terminal: String(record.pty) });
  // The promise never rejects.
  void record.reaped.then(() => {
    // Without an end the sandbox itself is gone.
    if (record.end === undefined) return;
    const { exitCode, status, byDeadline } = record.end;
    tell('info', byDeadline ? 'process ended at its time limit' : 'process ended', {
      exitCode: String(exitCode),
      status,
      durationMs: String(Math.round(clock.monotonic() - startedAt)),
    });
  });
}
