import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { keepCaptures, seedCaptures } from '@agentenv/runtime/testing';
import { waitUntil } from './wait.ts';

const REPOSITORY = resolve(import.meta.dirname, '../..');

/** A sandbox of `base` as it is configured unless told otherwise. */
const BASE = { vcpus: 2, memoryMB: 1_024, diskSizeMB: 10_240 };

/** Configuration without anything made in advance: every engine is somebody's, every create restores. */
export const NO_POOL = ['pool', 'pool.engines']
  .map((pool) => `${pool}.low_watermark = 0\n${pool}.high_watermark = 0`)
  .join('\n');

export interface ServerOptions {
  /** TOML appended to the generated configuration. */
  readonly config?: string;
  /** How sandboxes reach the outside; not at all unless given, as nothing a test does may leave this machine. */
  readonly uplink?: 'none' | 'pasta';
  /** Home directory to use (kept on stop); a temporary one is made and removed otherwise. */
  readonly home?: string;
  /** Milliseconds to wait until it answers `/health`; the first start captures the template. */
  readonly startTimeout?: number;
}

/** A real server process with its own home, runtime directory, port and key. */
export interface TestServer extends AsyncDisposable {
  readonly url: string;
  readonly apiKey: string;
  readonly home: string;
  readonly runtime: string;
  readonly pid: number;
  /** Everything the process printed so far, last 4 MiB. */
  output(): string;
  /** Connection options for the E2B SDKs: control plane and sandboxes behind one plain-HTTP listener. */
  readonly sdk: {
    readonly apiKey: string;
    readonly apiUrl: string;
    readonly sandboxUrl: string;
    readonly validateApiKey: false;
  };
  /** A control-plane request with the key. */
  api(path: string, init?: RequestInit): Promise<Response>;
  /** SIGKILL, as a crash would; home and runtime stay. */
  kill9(): Promise<void>;
  /** A new process on the same home, runtime directory, port and key; `more`: TOML it is configured with in addition. */
  restart(more?: string): Promise<void>;
  /** SIGTERM; resolves with the exit code. */
  stop(): Promise<number | null>;
}

/** A port that was free a moment ago on 127.0.0.1. */
export async function freePort(): Promise<number> {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  if (address === null || typeof address === 'string') throw new Error('no port');
  return address.port;
}

/** Starts a server and waits until it is healthy. */
export async function startServer(options: ServerOptions = {}): Promise<TestServer> {
  const scratch = await mkdtemp(join(tmpdir(), 'aenv-e2e-'));
  const home = options.home ?? join(scratch, 'home');
  // Unix socket paths are limited to 107 bytes, so the runtime directory is short.
  const runtime = `/run/aenv-e2e-${randomBytes(3).toString('hex')}`;
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const apiKey = `e2b_${randomBytes(20).toString('hex')}`;
  const configPath = join(scratch, 'config.toml');
  await mkdir(home, { recursive: true });
  if (options.home === undefined) await seedCaptures(join(home, 'qemu'), BASE);
  const configuration = [
    `api_addr = "127.0.0.1:${port}"`,
    `home_path = "${home}"`,
    `runtime_path = "${runtime}"`,
    `deps_path = "${join(REPOSITORY, '.aenv/artifacts')}"`,
    // Chapters that need an internet attach a namespace of their own.
    `network.uplink = "${options.uplink ?? 'none'}"`,
    options.config ?? '',
  ];

  let child: ChildProcess;
  let output = '';
  let exited: Promise<number | null>;
  const launch = async (more = '') => {
    await writeFile(configPath, [...configuration, more].join('\n'));
    child = spawn(join(REPOSITORY, 'aenv'), ['server', '--config', configPath], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { PATH: process.env.PATH, AENV_API_KEY: apiKey },
    });
    exited = once(child, 'exit').then(([code]) => code as number | null);
    for (const stream of [child.stdout, child.stderr]) {
      stream?.setEncoding('utf8');
      stream?.on('data', (text: string) => {
        output = (output + text).slice(-4 * 1024 * 1024);
      });
    }
    await waitUntil(
      async () => {
        const end = child.exitCode ?? child.signalCode;
        if (end !== null) throw new Error(`the server ended with ${end}:\n${output.slice(-4000)}`);
        const response = await fetch(`${url}/health`).catch(() => undefined);
        return response?.status === 204;
      },
      { timeout: options.startTimeout ?? 120_000, what: () => `the server to be healthy:\n${output.slice(-4000)}` },
    );
  };
  const end = async (signal: NodeJS.Signals) => {
    if (child.exitCode === null && child.signalCode === null) child.kill(signal);
    return exited;
  };

  try {
    await launch();
    await keepCaptures(join(home, 'qemu'), BASE);
  } catch (error) {
    await end('SIGTERM');
    await rm(scratch, { recursive: true, force: true });
    throw error;
  }

  return {
    url,
    apiKey,
    home,
    runtime,
    get pid() {
      return child.pid ?? -1;
    },
    output: () => output,
    sdk: { apiKey, apiUrl: url, sandboxUrl: url, validateApiKey: false },
    api: (path, init = {}) =>
      fetch(`${url}${path}`, {
        ...init,
        headers: { 'x-api-key': apiKey, ...(init.headers as Record<string, string>) },
      }),
    async kill9() {
      await end('SIGKILL');
    },
    restart: launch,
    stop: () => end('SIGTERM'),
    async [Symbol.asyncDispose]() {
      await end('SIGTERM');
      await rm(scratch, { recursive: true, force: true });
    },
  };
}
