import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { TestServer } from './server.ts';

/** The program of the published package, as its users run it. */
const PROGRAM = fileURLToPath(import.meta.resolve('@e2b/cli/dist/index.js'));
/** Longest run of a command, milliseconds; the machines that run this are shared, and guests may be emulated. */
const LIMIT_MS = 90_000;

export interface CliResult {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface CliOptions {
  /** What it reads from its standard input; a pipe that is closed at once unless given. */
  readonly input?: string;
  /** On a terminal of its own; `input` is typed there. */
  readonly terminal?: boolean;
}

/** A command that has been started. */
export interface CliRun {
  /** What it wrote so far, both streams. */
  output(): string;
  type(text: string): void;
  readonly done: Promise<CliResult>;
}

/** The E2B CLI with a server and a home directory of its own. */
export interface Cli extends AsyncDisposable {
  run(args: readonly string[], options?: CliOptions): Promise<CliResult>;
  start(args: readonly string[], options?: CliOptions): CliRun;
}

/** Sets up the published CLI for `server`, by nothing but the variables its documentation names. */
export async function createCli(server: Pick<TestServer, 'url' | 'apiKey'>): Promise<Cli> {
  const home = await mkdtemp(join(tmpdir(), 'aenv-cli-'));
  const children = new Set<ChildProcess>();
  const env = {
    PATH: process.env.PATH,
    HOME: home,
    TERM: 'xterm-256color',
    NO_COLOR: '1',
    E2B_API_URL: server.url,
    E2B_SANDBOX_URL: server.url,
    E2B_API_KEY: server.apiKey,
  };

  function start(args: readonly string[], { input = '', terminal = false }: CliOptions = {}): CliRun {
    const command = [process.execPath, PROGRAM, ...args];
    const quoted = command.map((word) => `'${word.replaceAll("'", `'\\''`)}'`).join(' ');
    const [program = '', ...words] = terminal ? ['script', '-qefc', quoted, '/dev/null'] : command;
    const child = spawn(program, words, { env, cwd: home, timeout: LIMIT_MS, stdio: ['pipe', 'pipe', 'pipe'] });
    children.add(child);
    let stdout = '';
    let stderr = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      stdout += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      stderr += text;
    });
    // It may end before it has read everything.
    child.stdin.on('error', () => {});
    if (terminal) child.stdin.write(input);
    else child.stdin.end(input);
    const done = once(child, 'close').then(([code]) => {
      children.delete(child);
      return { code: code as number | null, stdout, stderr };
    });
    return {
      output: () => stdout + stderr,
      type: (text) => child.stdin.write(text),
      done,
    };
  }

  return {
    start,
    run: (args, options) => start(args, options).done,
    async [Symbol.asyncDispose]() {
      for (const child of children) child.kill('SIGKILL');
      await rm(home, { recursive: true, force: true });
    },
  };
}
