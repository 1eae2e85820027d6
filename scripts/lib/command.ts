import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, type WriteStream } from 'node:fs';
import { finished, pipeline } from 'node:stream/promises';

/** Output kept of a command for its error message, bytes. */
const TAIL_BYTES = 4096;
/** Largest standard output `run` returns, bytes. */
const MAX_STDOUT_BYTES = 32 * 1024 * 1024;

export interface RunOptions {
  readonly cwd?: string;
  readonly env?: NodeJS.ProcessEnv;
  /** The command is ended after this many milliseconds. */
  readonly timeoutMs: number;
  /** Receives both outputs as they come, for logs and progress. */
  readonly onOutput?: (text: string) => void;
  /** Standard output goes into this new file instead of the result. */
  readonly stdoutFile?: string;
  /** Standard input; without it the command reads /dev/null. */
  readonly input?: Uint8Array;
  /** An open descriptor the command and its children inherit (the set-up lock). */
  readonly inheritFd?: number | undefined;
}

/** A command that could not be started, failed, or ran out of time. The message ends with the last lines it printed. */
export class CommandError extends Error {
  readonly exitCode: number | undefined;

  constructor(message: string, exitCode: number | undefined) {
    super(message);
    this.name = 'CommandError';
    this.exitCode = exitCode;
  }
}

/** Runs a command to its end and returns its standard output. Throws `CommandError` unless it exits with 0. */
export async function run(command: string, args: readonly string[], options: RunOptions): Promise<string> {
  const child = spawn(command, args, {
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
    ...(options.env === undefined ? {} : { env: options.env }),
    stdio: [options.input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe', options.inheritFd ?? 'ignore'],
    timeout: options.timeoutMs,
    killSignal: 'SIGKILL',
  });
  const failure = once(child, 'error').then(([error]) => {
    throw new CommandError(`${command}: ${error instanceof Error ? error.message : String(error)}`, undefined);
  });
  const closed = once(child, 'close').then(([code, signal]) => ({ code, signal }));

  let tail = '';
  const seen = (text: string): void => {
    tail = (tail + text).slice(-TAIL_BYTES);
    options.onOutput?.(text);
  };
  const stdout: Buffer[] = [];
  let stdoutBytes = 0;
  let file: WriteStream | undefined;
  const copied: Promise<void>[] = [];
  if (options.stdoutFile !== undefined) {
    file = createWriteStream(options.stdoutFile, { flags: 'wx' });
    if (child.stdout !== null) copied.push(pipeline(child.stdout, file));
  } else {
    child.stdout?.on('data', (chunk: Buffer) => {
      stdoutBytes += chunk.length;
      if (stdoutBytes <= MAX_STDOUT_BYTES) stdout.push(chunk);
      seen(chunk.toString());
    });
  }
  child.stderr?.on('data', (chunk: Buffer) => seen(chunk.toString()));
  if (child.stdin !== null) {
    // A command that does not read its input to the end (a decompressor with trailing bytes) is judged by its exit code.
    copied.push(finished(child.stdin).catch(() => {}));
    child.stdin.end(options.input);
  }

  const ended = Promise.all([closed, ...copied]).then(([end]) => end);
  const { code, signal } = await Promise.race([ended, failure]).catch((caught: unknown) => {
    // Its output has nowhere to go, so the rest of it is of no use.
    child.kill('SIGKILL');
    throw caught;
  });
  if (stdoutBytes > MAX_STDOUT_BYTES)
    throw new CommandError(`${command}: printed more than ${MAX_STDOUT_BYTES} bytes`, undefined);
  if (code !== 0) {
    const how =
      signal === null
        ? `exit code ${code}`
        : child.killed
          ? `no end after ${options.timeoutMs / 1000} s`
          : `signal ${signal}`;
    throw new CommandError(
      `${[command, ...args].join(' ').slice(0, 200)}: ${how}\n${tail.trimEnd()}`,
      code ?? undefined,
    );
  }
  return Buffer.concat(stdout).toString();
}
