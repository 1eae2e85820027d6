import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const MAIN = join(import.meta.dirname, '../main.ts');
/** Milliseconds; the machines that run this are shared. */
const START_LIMIT = 60_000;

export interface ServerProcessOptions {
  /** Directory with everything of this server; a new one, removed with the process, unless given. */
  readonly scratch?: string;
  /** Lines added to the configuration. */
  readonly config?: string;
  readonly environment?: Readonly<Record<string, string>>;
  readonly arguments?: readonly string[];
}

export interface ServerProcess extends AsyncDisposable {
  readonly process: ChildProcess;
  readonly home: string;
  readonly runtime: string;
  /** Everything it printed. */
  output(): string;
  /** Waits until it says that it is ready, and answers where. */
  ready(): Promise<string>;
  /** Waits until it has ended, after `signal` if given; answers the exit code. */
  end(signal?: NodeJS.Signals): Promise<number | null>;
}

/** The server as its own process, on the fake backend unless the configuration says otherwise. */
export async function startServerProcess(options: ServerProcessOptions = {}): Promise<ServerProcess> {
  const scratch = options.scratch ?? (await mkdtemp(join(tmpdir(), 'aenv-server-')));
  const home = join(scratch, 'home');
  const runtime = join(scratch, 'run');
  const config = join(scratch, 'config.toml');
  await mkdir(scratch, { recursive: true });
  await writeFile(
    config,
    [
      'api_addr = "127.0.0.1:0"',
      'home_path = "home"',
      'runtime_path = "run"',
      options.config ?? 'backend = "fake"',
    ].join('\n'),
  );
  // The young generation a server is started with.
  const program = ['--max-semi-space-size=2', MAIN, ...(options.arguments ?? ['--config', config])];
  const child = spawn(process.execPath, program, {
    env: { PATH: process.env.PATH ?? '', ...options.environment },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  const heard = new EventTarget();
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
      heard.dispatchEvent(new Event('output'));
    });
  }
  const closed = once(child, 'close').then(() => {
    heard.dispatchEvent(new Event('output'));
    return child.exitCode;
  });

  const end = async (signal?: NodeJS.Signals): Promise<number | null> => {
    if (signal !== undefined && child.exitCode === null) child.kill(signal);
    return closed;
  };
  return {
    process: child,
    home,
    runtime,
    output: () => output,
    async ready() {
      const limit = AbortSignal.timeout(START_LIMIT);
      for (;;) {
        const url = /"url":"([^"]+)"/.exec(output)?.[1];
        if (url !== undefined) return url;
        if (child.exitCode !== null || limit.aborted) throw new Error(`the server did not become ready:\n${output}`);
        await Promise.race([once(heard, 'output'), once(limit, 'abort')]);
      }
    },
    end,
    async [Symbol.asyncDispose]() {
      await end('SIGKILL');
      if (options.scratch === undefined) await rm(scratch, { recursive: true, force: true });
    },
  };
}
