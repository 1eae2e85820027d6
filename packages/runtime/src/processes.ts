import { readdir, readFile } from 'node:fs/promises';
import { type Clock, PlatformError } from '@agentenv/core';

/** A process that cannot be confused with a later one of the same pid. */
export interface ProcessIdentity {
  readonly pid: number;
  /** Clock ticks since boot, field 22 of `/proc/PID/stat`. */
  readonly startTime: number;
}

const GONE_POLL_MS = 5;

async function readProc(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8');
  } catch {
    // The process ended between two looks at it; that is an answer, not a failure.
    return undefined;
  }
}

/** Start time of a process, undefined when there is none or it is a zombie. */
export async function processStartTime(pid: number): Promise<number | undefined> {
  const stat = await readProc(`/proc/${pid}/stat`);
  if (stat === undefined) return undefined;
  // The name in parentheses may hold anything; fields count from behind its last parenthesis (state is field 3).
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  // The first thread may be gone while others still hold files and memory (field 20 counts threads).
  const ended = fields[0] === 'X' || (fields[0] === 'Z' && Number(fields[17]) <= 1);
  return ended ? undefined : Number(fields[19]);
}

/** True while exactly that process runs. */
export async function isRunning(identity: ProcessIdentity): Promise<boolean> {
  return (await processStartTime(identity.pid)) === identity.startTime;
}

/** A process with the argument it was looked for by. */
export interface FoundProcess extends ProcessIdentity {
  readonly argument: string;
}

/** Processes one of whose arguments satisfies `matches`. */
export async function findProcesses(matches: (argument: string) => boolean): Promise<readonly FoundProcess[]> {
  const found: FoundProcess[] = [];
  for (const entry of await readdir('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    const pid = Number(entry);
    const startTime = await processStartTime(pid);
    const commandLine = await readProc(`/proc/${entry}/cmdline`);
    if (startTime === undefined || commandLine === undefined) continue;
    const argument = commandLine.split('\0').find(matches);
    if (argument !== undefined) found.push({ pid, startTime, argument });
  }
  return found;
}

/** SIGKILL to exactly that process; nothing when it is gone already. */
export async function killProcess(identity: ProcessIdentity): Promise<void> {
  if (!(await isRunning(identity))) return;
  try {
    process.kill(identity.pid, 'SIGKILL');
  } catch (caught) {
    if (caught instanceof Error && 'code' in caught && caught.code === 'ESRCH') return;
    throw caught;
  }
}

/** Resolves when the process is gone; rejects with `deadline_exceeded`. */
export async function waitUntilGone(identity: ProcessIdentity, clock: Clock, deadlineMs: number): Promise<void> {
  const deadline = clock.monotonic() + deadlineMs;
  while (await isRunning(identity)) {
    if (clock.monotonic() >= deadline) {
      throw new PlatformError('deadline_exceeded', `process ${identity.pid} did not end`);
    }
    await new Promise<void>((resolve) => {
      clock.timer(GONE_POLL_MS, resolve);
    });
  }
}

/** Kills exactly that process; resolves when it is gone, rejects with `deadline_exceeded` when it does not go. */
export async function endProcess(identity: ProcessIdentity, clock: Clock, deadlineMs: number): Promise<void> {
  await killProcess(identity);
  await waitUntilGone(identity, clock, deadlineMs);
}
