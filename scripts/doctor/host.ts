import { constants } from 'node:fs';
import { access, lstat, open, readFile, statfs } from 'node:fs/promises';
import { freemem, totalmem } from 'node:os';
import { dirname } from 'node:path';
import { run } from '../lib/command.ts';
import { findProgram, type HostPackage, missingPackages } from '../setup/packages.ts';
import { checkCgroups, parseCgroupMounts } from './cgroups.ts';
import type { CheckResult } from './check.ts';
import { checkNullDevice } from './null-device.ts';
import { checkPrivileges } from './privileges.ts';

const GIB = 1024 ** 3;
/** Kept free of sandboxes by admission, bytes. */
const HOST_RESERVE = 2 * GIB;
/** One sandbox of `base` with room for its disk, bytes. */
const USEFUL_DISK = 10 * GIB;
const OLDEST_QEMU = [7, 2] as const;
const OLDEST_NODE = 26;
const DEADLINE_MS = 20_000;

/** The host as the checks see it. */
export interface DoctorHost {
  readonly env: NodeJS.ProcessEnv;
  readonly uid: number;
  readonly architecture: 'amd64' | 'arm64';
  /** The Debian packages set-up installs. */
  readonly packages: readonly HostPackage[];
  /** Where the server keeps its data, existing or not. */
  readonly dataDirectory: string;
}

type Check = (host: DoctorHost) => Promise<CheckResult>;

/** Everything about the machine itself, in the order it is shown. */
export const HOST_CHECKS: readonly Check[] = [
  checkSystem,
  async () => {
    const name = 'Node.js';
    const detail = process.versions.node;
    if (Number.parseInt(detail, 10) >= OLDEST_NODE) return { name, state: 'ok', detail };
    return { name, state: 'missing', detail: `${detail}, ${OLDEST_NODE} is needed`, remedy: './aenv setup' };
  },
  async (host) => {
    const status = await readFile('/proc/self/status', 'utf8');
    return checkPrivileges({ uid: host.uid, status, sudo: (await findProgram('sudo', host.env.PATH)) !== undefined });
  },
  async () => checkNullDevice(await lstat('/dev/null')),
  checkPackages,
  checkQemu,
  checkKvm,
  checkTun,
  checkNamespaces,
  checkNft,
  checkPasta,
  async () => {
    const { v2, v1 } = parseCgroupMounts(await readFile('/proc/self/mountinfo', 'utf8'));
    if (v2 === undefined) return checkCgroups({ v1 });
    const controllers = (await readFile(`${v2}/cgroup.controllers`, 'utf8')).trim().split(' ');
    return checkCgroups({ v1, v2: { path: v2, controllers: controllers.filter((controller) => controller !== '') } });
  },
  checkMemory,
  checkDisk,
];

async function checkSystem(host: DoctorHost): Promise<CheckResult> {
  const name = 'system';
  const release = await readFile('/etc/os-release', 'utf8').catch(() => '');
  const title = /^PRETTY_NAME="?([^"\n]*)/m.exec(release)?.[1] ?? 'unknown';
  const detail = `${title}, ${host.architecture}`;
  if (host.architecture !== 'amd64') {
    return {
      name,
      state: 'missing',
      detail: `${detail}; microVMs are built for amd64`,
      remedy: 'use an amd64 machine',
    };
  }
  if (/^ID=debian$/m.test(release) && /^VERSION_ID="?12"?$/m.test(release)) return { name, state: 'ok', detail };
  return { name, state: 'warning', detail: `${detail}; tested on Debian 12` };
}

async function checkPackages(host: DoctorHost): Promise<CheckResult> {
  const name = 'Debian packages';
  const missing = await missingPackages(host.packages, host.env.PATH);
  if (missing.length === 0) return { name, state: 'ok', detail: `all ${host.packages.length} there` };
  const detail = `missing: ${missing.map((item) => `${item.name} (${item.why})`).join(', ')}`;
  return { name, state: 'missing', detail, remedy: './aenv setup' };
}

/** First line a program prints, or undefined when it is not there or fails. */
async function versionLine(host: DoctorHost, program: string): Promise<string | undefined> {
  const path = await findProgram(program, host.env.PATH);
  if (path === undefined) return undefined;
  return run(path, ['--version'], { timeoutMs: DEADLINE_MS }).then(
    (output) => output.split('\n')[0],
    () => undefined,
  );
}

async function checkQemu(host: DoctorHost): Promise<CheckResult> {
  const name = 'QEMU';
  const line = await versionLine(host, 'qemu-system-x86_64');
  if (line === undefined) return { name, state: 'missing', detail: 'not installed', remedy: './aenv setup' };
  const [major = 0, minor = 0] = (/(\d+)\.(\d+)/.exec(line) ?? []).slice(1).map(Number);
  const [needMajor, needMinor] = OLDEST_QEMU;
  if (major > needMajor || (major === needMajor && minor >= needMinor)) return { name, state: 'ok', detail: line };
  return {
    name,
    state: 'missing',
    detail: `${line}; ${OLDEST_QEMU.join('.')} is needed`,
    remedy: 'upgrade qemu-system-x86',
  };
}

async function checkKvm(): Promise<CheckResult> {
  const name = 'KVM';
  try {
    const handle = await open('/dev/kvm', constants.O_RDWR);
    await handle.close();
    return { name, state: 'ok', detail: '/dev/kvm opens' };
  } catch (caught) {
    const reason = caught instanceof Error && 'code' in caught ? caught.code : String(caught);
    const detail = `/dev/kvm does not open (${reason}): microVMs are emulated, several times slower`;
    return {
      name,
      state: 'warning',
      detail,
      remedy: 'enable virtualisation in the firmware, or nested virtualisation of the hypervisor',
    };
  }
}

async function checkTun(host: DoctorHost): Promise<CheckResult> {
  const name = 'tap devices';
  // What an ordinary user may not open, the server still can.
  const mode = host.uid === 0 ? constants.R_OK | constants.W_OK : constants.F_OK;
  return access('/dev/net/tun', mode).then(
    (): CheckResult => ({ name, state: 'ok', detail: '/dev/net/tun' }),
    (): CheckResult => ({
      name,
      state: 'missing',
      detail: '/dev/net/tun cannot be opened',
      remedy: 'modprobe tun, as root',
    }),
  );
}

/** Runs a command as root in a new network namespace; that is also how a container without the rights is found out. */
async function tryInNamespace(
  host: DoctorHost,
  name: string,
  found: string,
  command: readonly string[],
): Promise<CheckResult> {
  if (host.uid !== 0) return { name, state: 'warning', detail: 'only root can tell', remedy: 'sudo ./aenv doctor' };
  return run('unshare', ['--net', '--mount', '--', ...command], { timeoutMs: DEADLINE_MS }).then(
    (): CheckResult => ({ name, state: 'ok', detail: found }),
    (caught: unknown): CheckResult => ({
      name,
      state: 'missing',
      detail: caught instanceof Error ? caught.message.replaceAll('\n', ' ') : String(caught),
      remedy:
        'use a kernel with network namespaces and nf_tables, and a container with CAP_SYS_ADMIN and CAP_NET_ADMIN',
    }),
  );
}

async function checkNamespaces(host: DoctorHost): Promise<CheckResult> {
  return tryInNamespace(host, 'network namespaces', 'can be made', ['ip', 'link', 'set', 'lo', 'up']);
}

async function checkNft(host: DoctorHost): Promise<CheckResult> {
  const rules =
    'add table inet t; add chain inet t c { type nat hook postrouting priority 100; }; add rule inet t c masquerade';
  return tryInNamespace(host, 'nftables', 'tables with NAT can be made', ['nft', rules]);
}

async function checkPasta(host: DoctorHost): Promise<CheckResult> {
  const name = 'pasta';
  const path = await findProgram('pasta', host.env.PATH);
  if (path === undefined) return { name, state: 'missing', detail: 'not installed', remedy: './aenv setup' };
  return { name, state: 'ok', detail: path };
}

async function checkMemory(): Promise<CheckResult> {
  const name = 'memory';
  const detail = `${gib(totalmem())} in all, ${gib(freemem())} free; sandboxes get what exceeds ${gib(HOST_RESERVE)}`;
  if (totalmem() > HOST_RESERVE + GIB) return { name, state: 'ok', detail };
  return { name, state: 'missing', detail, remedy: `a machine with more than ${gib(HOST_RESERVE + GIB)}` };
}

async function checkDisk(host: DoctorHost): Promise<CheckResult> {
  const name = 'data directory';
  let directory = host.dataDirectory;
  for (;;) {
    const usage = await statfs(directory).catch((caught: NodeJS.ErrnoException) => {
      if (caught.code === 'ENOENT' && directory !== '/') return undefined;
      throw caught;
    });
    if (usage === undefined) {
      directory = dirname(directory);
      continue;
    }
    const free = usage.bavail * usage.bsize;
    const detail = `${host.dataDirectory}: ${gib(free)} free`;
    if (free >= USEFUL_DISK) return { name, state: 'ok', detail };
    return {
      name,
      state: 'warning',
      detail,
      remedy: `${gib(USEFUL_DISK)} are one sandbox's disk; set home_path to a larger file system`,
    };
  }
}

function gib(bytes: number): string {
  return `${(bytes / GIB).toFixed(1)} GiB`;
}
