// @ts-check
/**
 * The program of `createProcessStarter`. Plain JavaScript: the memory that stripping types takes, 13 MiB, would be more than
 * half of what this process has, and whoever forks pays for all of it.
 */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';

/**
 * @import { ChildProcess } from 'node:child_process'
 * @import { Readable } from 'node:stream'
 * @import { Argv, CommandRequest, ProgramEnd, StarterAnswer, StarterRequest } from './process-starter-protocol.ts'
 */

const MAX_OUTPUT = 256 * 1024;
const MAX_WORDS = 4_096;
/** Nothing of the server's own environment reaches a command. */
const ENVIRONMENT = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };

/** @type {Map<number, { readonly child: ChildProcess, readonly settle: (failure: string | undefined) => void }>} */
const commands = new Map();
/**
 * Of programs that go on, by pid, until somebody was told.
 * @type {Map<number, Promise<Omit<ProgramEnd, 'id'>>>}
 */
const ends = new Map();

/** @param {StarterAnswer} message */
function answer(message) {
  // Without a server nobody wants to know.
  if (process.connected) process.send?.(message, () => undefined);
}

/**
 * Keeps the last of what is written. The stream is always read, so that nobody waits for it, and its end is no failure.
 * @param {Readable | null | undefined} stream missing where there were no descriptors left for it
 * @param {number} max
 */
function keepTail(stream, max) {
  let tail = '';
  if (!stream) return () => tail;
  stream.setEncoding('utf8').on('data', (text) => {
    tail = (tail + text).slice(-max);
  });
  stream.on('error', () => undefined);
  return () => tail;
}

/**
 * @param {number} id
 * @param {CommandRequest} command
 */
function runCommand(id, { argv: [program, ...args], stdin, maxOutput = MAX_OUTPUT }) {
  // A group of its own, which is ended as one.
  const child = spawn(program, args, { env: ENVIRONMENT, stdio: ['pipe', 'pipe', 'pipe'], detached: true });
  const [stdout, stderr] = [keepTail(child.stdout, maxOutput), keepTail(child.stderr, MAX_OUTPUT)];
  /** @param {string | undefined} failure */
  function settle(failure) {
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
  child.stdin?.on('error', () => {});
  child.stdin?.end(stdin);
}

/**
 * Ends a command with everything it started; nothing when it has ended.
 * @param {ChildProcess} child
 */
function killGroup({ pid, exitCode, signalCode }) {
  if (pid === undefined || exitCode !== null || signalCode !== null) return;
  try {
    process.kill(-pid, 'SIGKILL');
  } catch (error) {
    // It ended between the look and the signal.
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error;
  }
}

/**
 * Of a child, which is at least a zombie until this program has seen its end.
 * @param {number} pid
 */
function startTimeOf(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]);
}

/**
 * @param {number} id
 * @param {Argv} argv
 * @param {Readonly<Record<string, string>>} env
 */
function startProgram(id, [program, ...args], env) {
  // It ignores SIGPIPE: when its starter dies its last words are lost and nothing else.
  const child = spawn(program, args, { detached: true, cwd: '/', env, stdio: ['ignore', 'ignore', 'pipe'] });
  const { pid } = child;
  const words = keepTail(child.stderr, MAX_WORDS);
  if (pid === undefined) {
    child.once('error', ({ message }) => answer({ id, how: message, words: '' }));
    return;
  }
  /** @type {PromiseWithResolvers<Omit<ProgramEnd, 'id'>>} */
  const { promise, resolve } = Promise.withResolvers();
  child.once('close', (code, signal) => {
    resolve({ how: signal === null ? `exit status ${code}` : `signal ${signal}`, words: words().trim() });
  });
  try {
    answer({ id, pid, startTime: startTimeOf(pid) });
    ends.set(pid, promise);
  } catch (error) {
    // Nobody would know of it.
    child.kill('SIGKILL');
    throw error;
  }
}

/**
 * @param {number} id
 * @param {number} pid
 */
async function tellEnd(id, pid) {
  const end = ends.get(pid);
  // Another one may get the pid before this one's last words are read.
  ends.delete(pid);
  answer(end === undefined ? { id, unknown: pid } : { id, ...(await end) });
}

process.title = 'aenv-starter';
// It ends with its server, which is told to end by other means.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => undefined);
process.on('disconnect', () => {
  for (const { child } of commands.values()) killGroup(child);
  process.exit();
});
process.on('message', (/** @type {StarterRequest} */ request) => {
  try {
    handle(request);
  } catch (error) {
    // One that cannot be started must not end those that can.
    const reason = error instanceof Error ? error.message : String(error);
    if ('program' in request) answer({ id: request.id, how: reason, words: '' });
    else answer({ id: request.id, stdout: '', stderr: '', failure: `could not be started (${reason})` });
  }
});

/** @param {StarterRequest} request */
function handle(request) {
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
}
