import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, rmdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Agent, createAgent, createUnixSocketEndpoint } from '@agentenv/agent';
import { buildGuest, testClock } from '@agentenv/agent/testing';
import { SILENT_LOG } from '@agentenv/core';
import { createRawConnection, type RawConnection } from './raw-connection.ts';

const START_TIMEOUT_MS = 30_000;
const EXIT_TIMEOUT_MS = 20_000;

/** $1 is the test's directory, the rest the agent's command line. */
const SET_UP = `
set -eu
ip link set lo up
mkdir "$1/small"
mount -t tmpfs -o size=1m,nr_inodes=64 tmpfs "$1/small"
shift
exec "$@"
`;

/** The agent with sanitizers, PID 1 of fresh pid, mount and network namespaces; needs root. */
export interface SanitizedGuest {
  /** A directory on this machine's disk that the guest sees too; `small` in it is 1 MiB of memory that only the guest sees. */
  readonly directory: string;
  /** undefined where this machine has no cgroup v2. */
  readonly cgroup: string | undefined;
  /** The agent's process id outside its namespaces. */
  readonly pid: number;
  /** A connection through the real client. */
  connect(key?: Uint8Array): Promise<Agent>;
  /** A connection that has not said anything yet. */
  connectRaw(): Promise<RawConnection>;
  /** Ends the agent by SIGTERM and fails on any report of the sanitizers, leaks included. */
  stop(): Promise<void>;
}

async function findCgroup(): Promise<string | undefined> {
  const mounts = (await readFile('/proc/self/mounts', 'utf8')).split('\n').map((line) => line.split(' '));
  const mount = mounts.find(([, , type]) => type === 'cgroup2')?.[1];
  return mount === undefined ? undefined : join(mount, `aenv-guest-test-${randomBytes(6).toString('hex')}`);
}

/** The only child of `unshare --fork`. */
async function childOf(pid: number): Promise<number> {
  return Number((await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8')).trim());
}

function exitOf(child: ChildProcess): Promise<number | undefined> {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve(child.exitCode ?? undefined);
  return new Promise((resolve) => child.once('exit', (code) => resolve(code ?? undefined)));
}

export async function startSanitizedGuest(): Promise<SanitizedGuest> {
  const program = await buildGuest({ sanitize: true });
  const directory = await mkdtemp(join(tmpdir(), 'aenv-san-'));
  const cgroup = await findCgroup();
  const socketPath = join(directory, 'agent.sock');
  const command = [program, '--listen', socketPath, '--no-init', ...(cgroup === undefined ? [] : ['--cgroup', cgroup])];
  const namespaces = [
    '--mount',
    '--pid',
    '--net',
    '--fork',
    '--kill-child',
    '--mount-proc',
    '--propagation',
    'private',
  ];
  const child = spawn('unshare', [...namespaces, 'sh', '-c', SET_UP, 'sh', directory, ...command], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', ASAN_OPTIONS: 'detect_leaks=1' },
  });
  const reports: Buffer[] = [];
  child.stderr.on('data', (chunk: Buffer) => reports.push(chunk));
  const ended = exitOf(child);
  const endpoint = createUnixSocketEndpoint(socketPath, { clock: testClock });
  const connect = () => endpoint.connect(AbortSignal.timeout(START_TIMEOUT_MS));

  async function cleanUp(): Promise<void> {
    child.kill('SIGKILL');
    await ended;
    await rm(directory, { recursive: true, force: true });
    if (cgroup === undefined) return;
    // The kernel still takes the killed processes apart.
    const until = performance.now() + EXIT_TIMEOUT_MS;
    while ((await readdir(cgroup).catch(() => [])).length > 0) {
      const removed = await rmdir(cgroup).then(
        () => true,
        () => false,
      );
      if (removed) return;
      if (performance.now() > until) throw new Error(`cannot remove the cgroup ${cgroup}`);
    }
  }

  try {
    (await connect()).destroy();
  } catch (caught) {
    await cleanUp();
    throw new Error(`the sanitized guest did not start: ${Buffer.concat(reports)}`, { cause: caught });
  }
  const pid = await childOf(child.pid ?? 0);

  return {
    directory,
    cgroup,
    pid,
    async connect(key = new Uint8Array(16)) {
      const rng = { bytes: (length: number) => randomBytes(length) };
      return await createAgent({ socket: await connect(), key, clock: testClock, rng, log: SILENT_LOG });
    },
    async connectRaw() {
      return createRawConnection(await connect());
    },
    async stop() {
      let code: number | undefined;
      try {
        process.kill(pid, 'SIGTERM');
        code = await Promise.race([
          ended,
          new Promise<undefined>((resolve) => testClock.timer(EXIT_TIMEOUT_MS, () => resolve(undefined))),
        ]);
      } finally {
        await cleanUp();
      }
      const report = Buffer.concat(reports).toString();
      if (code !== 0 || report !== '') throw new Error(`the guest ended with ${code}; it reported: ${report}`);
    },
  };
}
