import type { ProcessExit } from '@agentenv/agent';

/** How a process ended, as the end event tells it (contract e2b.md section 9.2, semantics 4). */
export interface ProcessEnd {
  /** -1 when a signal ended it. */
  readonly exitCode: number;
  readonly exited: boolean;
  readonly status: string;
  readonly error: string | undefined;
  /** The time limit ended it. */
  readonly byDeadline: boolean;
}

/** Names a client reads behind `signal: `, by signal number. */
const SIGNAL_NAMES: Readonly<Record<number, string>> = {
  1: 'hangup',
  2: 'interrupt',
  3: 'quit',
  4: 'illegal instruction',
  5: 'trace/breakpoint trap',
  6: 'aborted',
  7: 'bus error',
  8: 'floating point exception',
  9: 'killed',
  10: 'user defined signal 1',
  11: 'segmentation fault',
  12: 'user defined signal 2',
  13: 'broken pipe',
  14: 'alarm clock',
  15: 'terminated',
};

export function describeEnd(exit: ProcessExit): ProcessEnd {
  const byDeadline = exit.reason === 'deadline';
  if (exit.signal !== 0) {
    const status = `signal: ${SIGNAL_NAMES[exit.signal] ?? exit.signal}`;
    return { exitCode: -1, exited: false, status, error: status, byDeadline };
  }
  const status = `exit status ${exit.code}`;
  return { exitCode: exit.code, exited: true, status, error: exit.code === 0 ? undefined : status, byDeadline };
}
