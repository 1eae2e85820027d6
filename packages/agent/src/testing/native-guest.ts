import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { copyFile, mkdtemp, readFile, rm, rmdir, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { type Log, SILENT_LOG } from '@agentenv/core';
import type { Agent } from '../agent.ts';
import { createAgent } from '../client/create-agent.ts';
import { createUnixSocketEndpoint } from '../unix-socket-endpoint.ts';
import { type BuildGuestOptions, buildGuest } from './build-guest.ts';
import { testClock } from './test-clock.ts';

/** Longest wait for the agent to listen and answer, milliseconds. */
const START_TIMEOUT_MS = 20_000;

/**
 * Makes a machine like an E2B sandbox of the calling one: private home directories, /tmp and /run, a `user` of uid 1000,
 * an empty network with loopback. $1 is the directory shared with the test; the rest is the agent's command line.
 */
const SET_UP = `
set -eu
mount --bind "$1" /mnt
shift
for directory in /home /root /run; do mount -t tmpfs -o mode=755 tmpfs "$directory"; done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir /home/user
chown 1000:1000 /home/user
mount --bind /mnt/passwd /etc/passwd
mount --bind /mnt/group /etc/group
ip link set lo up
cd /
exec "$@"
`;

export interface NativeGuestOptions extends BuildGuestOptions {
  readonly log?: Log;
}

/** The guest agent as a process of this machine, in namespaces of its own; needs root. */
export interface NativeGuest extends AsyncDisposable {
  /** The connected agent; a new one after `reconnect`. */
  readonly agent: Agent;
  readonly socketPath: string;
  /** A process of this machine in the network namespace of the guest, for `nsenter`. */
  readonly pid: number;
  /** Channel key of the present generation; changed by whoever activates with another one. */
  key: Uint8Array;
  /** Closes the connection and opens another one, as a restarted server would. */
  reconnect(options?: { readonly resyncTimeoutMs: number }): Promise<Agent>;
  /** SIGKILL to the guest and everything in it. */
  kill(): void;
  /** What the agent wrote to stderr so far. */
  stderr(): Promise<string>;
}

/** The tables of this machine with `user` in place of whoever has that name or id. */
async function userTables(directory: string): Promise<void> {
  const without = (text: string): string[] =>
    text.split('\n').filter((line) => line !== '' && !/^user:|^[^:]*:[^:]*:1000:/.test(line));
  const passwd = without(await readFile('/etc/passwd', 'utf8'));
  const group = without(await readFile('/etc/group', 'utf8'));
  passwd.push('user:x:1000:1000:user:/home/user:/bin/bash');
  group.push('user:x:1000:', 'extra:x:2000:user');
  await writeFile(join(directory, 'passwd'), `${passwd.join('\n')}\n`);
  await writeFile(join(directory, 'group'), `${group.join('\n')}\n`);
}

/** A fresh cgroup name below the cgroup v2 of this machine, with which the agent can freeze; undefined without one. */
async function freezerCgroup(): Promise<string | undefined> {
  const mounts = (await readFile('/proc/self/mounts', 'utf8')).split('\n').map((line) => line.split(' '));
  const mount = mounts.find(([, , type]) => type === 'cgroup2')?.[1];
  return mount === undefined ? undefined : join(mount, `aenv-test-${randomBytes(6).toString('hex')}`);
}

async function removeCgroup(path: string): Promise<void> {
  const until = testClock.monotonic() + 5000;
  for (;;) {
    try {
      await rmdir(path);
      return;
    } catch (caught) {
      const { code } = caught as NodeJS.ErrnoException;
      if (code === 'ENOENT') return;
      // The kernel still takes the killed processes apart.
      if (code !== 'EBUSY' || testClock.monotonic() > until) throw caught;
      await setTimeout(5);
    }
  }
}

function exited(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve();
  return new Promise((resolve) => child.once('exit', () => resolve()));
}

/** Starts the agent as PID 1 of fresh namespaces and connects to it. Nothing outside its temporary directory is touched. */
export async function startNativeGuest(options: NativeGuestOptions = {}): Promise<NativeGuest> {
  const program = await buildGuest(options);
  const directory = await mkdtemp(join(tmpdir(), 'aenv-guest-'));
  const cgroup = await freezerCgroup();
  await userTables(directory);
  // A copy inside, as the repository itself may lie below one of the covered directories.
  await copyFile(program, join(directory, 'aenv-guest'));
  const stderrPath = join(directory, 'stderr');
  await writeFile(stderrPath, '');

  const listen = ['/mnt/aenv-guest', '--listen', '/mnt/agent.sock', '--no-init'];
  const command = cgroup === undefined ? listen : [...listen, '--cgroup', cgroup];
  // Dies with the test runner, however that ends; and everything inside dies with it.
  const dieWithParent = ['--pdeathsig', 'KILL', 'unshare'];
  const namespaces = ['--mount', '--pid', '--net', '--uts', '--ipc', '--fork', '--kill-child', '--mount-proc'];
  const child = spawn(
    'setpriv',
    [
      ...dieWithParent,
      ...namespaces,
      '--propagation',
      'private',
      'sh',
      '-c',
      `exec 2>>"$1/stderr"\n${SET_UP}`,
      'sh',
      directory,
      ...command,
    ],
    {
      stdio: 'ignore',
      env: { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', ASAN_OPTIONS: 'detect_leaks=0' },
    },
  );

  const socketPath = join(directory, 'agent.sock');
  const endpoint = createUnixSocketEndpoint(socketPath, { clock: testClock });
  let key: Uint8Array = new Uint8Array(16);

  async function connect(resyncTimeoutMs = START_TIMEOUT_MS): Promise<Agent> {
    const ended = new AbortController();
    const onExit = (): void => ended.abort(new Error('the guest agent ended'));
    child.once('exit', onExit);
    try {
      const signal = AbortSignal.any([AbortSignal.timeout(START_TIMEOUT_MS), ended.signal]);
      const socket = await endpoint.connect(signal);
      const rng = { bytes: (length: number) => randomBytes(length) };
      const log = options.log ?? SILENT_LOG;
      return await createAgent({ socket, key, clock: testClock, rng, log, resyncTimeoutMs }, signal);
    } finally {
      child.off('exit', onExit);
    }
  }

  async function dispose(agent: Agent | undefined): Promise<void> {
    await agent?.[Symbol.asyncDispose]();
    child.kill('SIGKILL');
    await exited(child);
    await rm(directory, { recursive: true, force: true });
    if (cgroup !== undefined) await removeCgroup(cgroup);
  }

  let agent: Agent;
  try {
    agent = await connect();
  } catch (caught) {
    const stderr = await readFile(stderrPath, 'utf8');
    await dispose(undefined);
    throw new Error(`the native guest did not start: ${stderr}`, { cause: caught });
  }

  return {
    get agent() {
      return agent;
    },
    socketPath,
    pid: child.pid ?? -1,
    get key() {
      return key;
    },
    set key(next) {
      key = next;
    },
    async reconnect(connection) {
      await agent[Symbol.asyncDispose]();
      agent = await connect(connection?.resyncTimeoutMs);
      return agent;
    },
    kill() {
      child.kill('SIGKILL');
    },
    stderr: () => readFile(stderrPath, 'utf8'),
    [Symbol.asyncDispose]: () => dispose(agent),
  };
}
