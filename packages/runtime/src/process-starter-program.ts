import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import type { Readable } from 'node:stream';

/** Program and arguments. */
export type Argv = readonly [string, ...string[]];

export interface CommandRequest {
  readonly argv: Argv;
  readonly stdin: string;
  /** Characters kept of its standard output, the last ones. */
  readonly maxOutput?: number;
}

export type StarterRequest =
  /** Runs a command to its end, which is the answer. */
  | { readonly id: number; readonly command: CommandRequest }
  /** About a command: ends it with everything it started. */
  | { readonly id: number; readonly end: true }
  /** Starts a program that goes on without its starter, with that environment; the answer is who it is. */
  | { readonly id: number; readonly program: Argv; readonly env: Readonly<Record<string, string>> }
  /** Waits for the end of such a program, which is the answer; asked once for each. */
  | { readonly id: number; readonly endOf: number };

/** How a command ended. */
export interface CommandEnd {
  readonly id: number;
  readonly stdout: string;
  readonly stderr: string;
  /** What is wrong with it, in words that follow the program's name; undefined when it succeeded. */
  readonly failure?: string;
}

export interface StartedProgram {
  readonly id: number;
  readonly pid: number;
  /** Field 22 of its `/proc/PID/stat`. */
  readonly startTime: number;
}

/** How a program that went on ended, or why it was not started. */
export interface ProgramEnd {
  readonly id: number;
  readonly how: string;
  /** Its last words on stderr. */
  readonly words: string;
}

export type StarterAnswer = CommandEnd | StartedProgram | ProgramEnd;

const MAX_OUTPUT = 256 * 1024;
const MAX_WORDS = 4_096;
/** Nothing of the server's own environment reaches a command. */
const ENVIRONMENT = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };

const commands = new Map<number, { readonly child: ChildProcess; settle(failure: string | undefined): void }>();
/** Of programs that go on, by pid, until somebody was told. */
const ends = new Map<number, Promise<Omit<ProgramEnd, 'id'>>>();

function answer(message: StarterAnswer): void {
  // Without a server nobody wants to know.
  if (process.connected) process.send?.(message, () => undefined);
}

/** Keeps the last of what is written. The stream is always read, so that nobody waits for it, and its end is no failure. */
function keepTail(stream: Readable, max: number): () => string {
  let tail = '';
  stream.setEncoding('utf8').on('data', (text: string) => {
    tail = (tail + text).slice(-max);
  });
  stream.on('error', () => undefined);
  return () => tail;
}

function runCommand(id: number, { argv: [program, ...args], stdin, maxOutput = MAX_OUTPUT }: CommandRequest): void {
  // A group of its own, which is ended as one.
  const child = spawn(program, args, { env: ENVIRONMENT, stdio: ['pipe', 'pipe', 'pipe'], detached: true });
  const [stdout, stderr] = [keepTail(child.stdout, maxOutput), keepTail(child.stderr, MAX_OUTPUT)];
  function settle(failure: string | undefined): void {
    if (!commands.delete(id)) return;
    answer({ id, stdout: stdout(), stderr: stderr(), ...(failure === undefined ? {} : { failure }) });
  }
  commands.set(id, { child, settle });
  child.on('error', (error) => settle(`could not be started (${error.message})`));
  child.on('close', (code, killedBy) => {
    if (code === 0) settle(undefined);
    else settle(killedBy === null ? `failed with status ${code}` : `was ended by ${killedBy}`);
  });
  // A command that ends without reading its input must not take the starter with it; its status tells.
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

/** Of a child, which is at least a zombie until this program has seen its end. */
function startTimeOf(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]);
}

function startProgram(id: number, [program, ...args]: Argv, env: Readonly<Record<string, string>>): void {
  // It ignores SIGPIPE: when its starter dies its last words are lost and nothing else.
  const child = spawn(program, args, { detached: true, cwd: '/', env, stdio: ['ignore', 'ignore', 'pipe'] });
  const { pid } = child;
  const words = keepTail(child.stderr, MAX_WORDS);
  if (pid === undefined) {
    child.once('error', ({ message }) => answer({ id, how: message, words: '' }));
    return;
  }
  const { promise, resolve } = Promise.withResolvers<Omit<ProgramEnd, 'id'>>();
  child.once('close', (code, signal) => {
    resolve({ how: signal === null ? `exit status ${code}` : `signal ${signal}`, words: words().trim() });
  });
  ends.set(pid, promise);
  answer({ id, pid, startTime: startTimeOf(pid) });
}

async function tellEnd(id: number, pid: number): Promise<void> {
  const end = await ends.get(pid);
  ends.delete(pid);
  answer({ id, ...(end ?? { how: 'never started here', words: '' }) });
}

process.title = 'aenv-starter';
// It ends with its server, which is told to end by other means.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => undefined);
process.on('disconnect', () => process.exit());
process.on('message', (request: StarterRequest) => {
  if ('command' in request) {
    runCommand(request.id, request.command);
  } else if ('program' in request) {
    startProgram(request.id, request.program, request.env);
  } else if ('endOf' in request) {
    void tellEnd(request.id, request.endOf);
  } else {
    const found = commands.get(request.id);
    if (found === undefined) return;
    killGroup(found.child);
    found.settle('was ended');
  }
});
