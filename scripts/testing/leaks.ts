import { lstat, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../lib/command.ts';
import { readTextIfPresent } from '../lib/files.ts';

/** What a host holds that the server or its tests may have made: one line of text each, by kind. */
export type HostSnapshot = Readonly<Record<LeakKind, ReadonlySet<string>>>;

export type LeakKind =
  | 'process'
  | 'mount'
  | 'network namespace'
  | 'network link'
  | 'nft table'
  | 'cgroup'
  | 'socket'
  | 'loop device'
  | 'device'
  | 'file';

/** Programs the server and the tests start, in the first words of a command line. */
const OUR_PROGRAMS =
  /(qemu-system-|aenv-guest|aenv-launch|passt|pasta|packages\/server\/src\/main\.ts|virtiofsd|qemu-nbd)/;
/** Directories whose members of that name belong to a server or a test. */
const OUR_FILES = ['/run', '/tmp', '/dev/shm'] as const;
const OUR_FILE_NAME = /^aenv/;
const COMMON_DEVICES = ['/dev/null', '/dev/zero', '/dev/full', '/dev/random', '/dev/urandom', '/dev/tty'] as const;
const COMMAND_DEADLINE_MS = 10_000;

/** Takes stock of this host. Kinds that cannot be read here (no nft, say) are empty. */
export async function snapshotHost(): Promise<HostSnapshot> {
  return {
    process: new Set(await processes()),
    mount: new Set(mountPoints(await readFile('/proc/self/mountinfo', 'utf8'))),
    'network namespace': new Set(await names('/run/netns')),
    'network link': new Set(await names('/sys/class/net')),
    'nft table': new Set(await nftTables()),
    cgroup: new Set(await cgroups()),
    socket: new Set(ourSockets(await readFile('/proc/net/unix', 'utf8'))),
    'loop device': new Set(await loopDevices()),
    device: new Set(await devices()),
    file: new Set(await files()),
  };
}

/** What is in `after` and not in `before`, as `kind: what`. */
export function leaksBetween(before: HostSnapshot, after: HostSnapshot): readonly string[] {
  return kindsOf(after).flatMap((kind) => [...after[kind].difference(before[kind])].map((item) => `${kind}: ${item}`));
}

function kindsOf(snapshot: HostSnapshot): readonly LeakKind[] {
  return Object.keys(snapshot) as LeakKind[];
}

async function names(directory: string): Promise<string[]> {
  return readdir(directory).catch((caught: NodeJS.ErrnoException) => {
    if (caught.code === 'ENOENT') return [];
    throw caught;
  });
}

/** Running processes of ours with their start time, so that a reused pid counts as another process. */
async function processes(): Promise<string[]> {
  const pids = (await names('/proc')).filter((name) => /^\d+$/.test(name));
  const found = await Promise.all(
    pids.map(async (pid) => {
      const command = (await readProcess(pid, 'cmdline')).replaceAll('\0', ' ').trim();
      if (!OUR_PROGRAMS.test(command.split(' ').slice(0, 3).join(' '))) return [];
      const fields = (await readProcess(pid, 'stat')).replace(/^.*\) /, '').split(' ');
      // A zombie holds nothing and is only waited for by its parent.
      return fields[0] === 'Z' || fields[19] === undefined
        ? []
        : [`${pid} (started ${fields[19]}) ${command.slice(0, 160)}`];
    }),
  );
  return found.flat();
}

/** A file below /proc/PID, empty when the process ended meanwhile. */
async function readProcess(pid: string, file: string): Promise<string> {
  return readFile(join('/proc', pid, file), 'utf8').catch(() => '');
}

/** Mount points of a `/proc/PID/mountinfo`, without the one that `ip netns` makes on its first use and keeps. */
export function mountPoints(mountinfo: string): readonly string[] {
  return mountinfo
    .split('\n')
    .map((line) => line.split(' ')[4] ?? '')
    .filter((point) => point !== '' && point !== '/run/netns');
}

/** Bound unix sockets of ours in `/proc/net/unix`. */
export function ourSockets(table: string): readonly string[] {
  return table
    .split('\n')
    .map((line) => line.trim().split(/\s+/)[7] ?? '')
    .filter((path) => path.includes('aenv'));
}

async function nftTables(): Promise<string[]> {
  return run('nft', ['list', 'tables'], { timeoutMs: COMMAND_DEADLINE_MS }).then(
    (output) => output.split('\n').filter((line) => line !== ''),
    () => [],
  );
}

/** Directories named `aenv…` up to four levels below the roots of all cgroup hierarchies. */
async function cgroups(): Promise<string[]> {
  const roots = (await readFile('/proc/self/mountinfo', 'utf8'))
    .split('\n')
    .filter((line) => / - cgroup2? /.test(line))
    .map((line) => line.split(' ')[4] ?? '');
  const found: string[] = [];
  const walk = async (directory: string, depth: number): Promise<void> => {
    const entries = await readdir(directory, { withFileTypes: true }).catch(() => []);
    for (const entry of entries) {
      if (!entry.isDirectory()) continue;
      const path = join(directory, entry.name);
      if (entry.name.includes('aenv')) found.push(path);
      if (depth > 1) await walk(path, depth - 1);
    }
  };
  for (const root of roots) await walk(root, 4);
  return found;
}

async function loopDevices(): Promise<string[]> {
  const devices = (await names('/sys/block')).filter((name) => name.startsWith('loop'));
  const attached = await Promise.all(
    devices.map(async (name) => {
      const file = await readTextIfPresent(`/sys/block/${name}/loop/backing_file`);
      return file === undefined ? [] : [`${name} ${file.trim()}`];
    }),
  );
  return attached.flat();
}

/** What every program relies on, with type, owner and mode: a test that runs as root can change or replace it. */
async function devices(): Promise<string[]> {
  return Promise.all(
    COMMON_DEVICES.map((path) =>
      lstat(path).then(
        ({ mode, uid, gid, rdev }) => `${path} ${mode.toString(8)} ${uid}:${gid} ${rdev}`,
        () => `${path} is missing`,
      ),
    ),
  );
}

/** Files and directories of ours in the shared directories. */
async function files(): Promise<string[]> {
  const found: string[] = [];
  for (const directory of OUR_FILES) {
    for (const name of (await names(directory)).filter((entry) => OUR_FILE_NAME.test(entry))) {
      found.push(join(directory, name));
    }
  }
  return found;
}
