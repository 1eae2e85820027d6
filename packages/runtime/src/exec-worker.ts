import { type ChildProcess, spawn } from 'node:child_process';
import { parentPort } from 'node:worker_threads';

/** Runs a command, or ends one that was begun with everything it started. */
export type ExecRequest =
  | { readonly id: number; readonly argv: readonly [string, ...string[]]; readonly stdin: string }
  | { readonly id: number; readonly end: true };

/** How a command ended; one answer for each that was begun. */
export interface ExecAnswer {
  readonly id: number;
  readonly stdout: string;
  readonly stderr: string;
  /** What is wrong with it, in words that follow the program's name; undefined when it succeeded. */
  readonly failure: string | undefined;
}

const MAX_OUTPUT = 256 * 1024;
/** Nothing of the server's own environment reaches a command. */
const ENVIRONMENT = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };

const running = new Map<number, { readonly child: ChildProcess; settle(failure: string | undefined): void }>();

function begin(id: number, [program, ...args]: readonly [string, ...string[]], stdin: string): void {
  // A group of its own: an interrupt at the server's terminal does not cut off a change half-way.
  const child = spawn(program, args, { env: ENVIRONMENT, stdio: ['pipe', 'pipe', 'pipe'], detached: true });
  const output = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const) {
    child[name].setEncoding('utf8').on('data', (text: string) => {
      output[name] = (output[name] + text).slice(-MAX_OUTPUT);
    });
  }
  function settle(failure: string | undefined): void {
    if (!running.delete(id)) return;
    const answer: ExecAnswer = { id, ...output, failure };
    parentPort?.postMessage(answer);
  }
  running.set(id, { child, settle });
  child.on('error', (error) => settle(`could not be started (${error.message})`));
  child.on('close', (code, killedBy) => {
    if (code === 0) settle(undefined);
    else settle(killedBy === null ? `failed with status ${code}` : `was ended by ${killedBy}`);
  });
  // A command that ends without reading its input must not take the thread with it; its status tells.
  child.stdin.on('error', () => {});
  child.stdin.end(stdin);
}

/** Ends a command with everything it started; nothing when it has ended. */
function killGroup({ pid, exitCode, signalCode }: ChildProcess): void {
  if (pid === undefined || exitCode !== null || signalCode !== null) return;
  try {
    process.kill(-pid, 'SIGKILL');
  } catch (error) {
    // It ended between the look and the signal.
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error;
  }
}

parentPort?.on('message', (request: ExecRequest) => {
  if ('argv' in request) {
    begin(request.id, request.argv, request.stdin);
    return;
  }
  const found = running.get(request.id);
  if (found === undefined) return;
  killGroup(found.child);
  found.settle('was ended');
});
