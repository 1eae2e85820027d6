import { readFile, statfs } from 'node:fs/promises';
import { arch, availableParallelism } from 'node:os';
import type { Clock, Log } from '@agentenv/core';
import type { components } from '@agentenv/protocol/control-plane';
import { delay } from '../delay.ts';
import { hostMemory } from '../orchestrator/host-capacity.ts';
import { createDiskUsage, type FileSystemFacts } from './disk-usage.ts';

export type MachineInfo = components['schemas']['Node']['machineInfo'];
export type HostDisk = components['schemas']['NodeMetrics']['disks'][number];

/** What a host has and uses now. */
export interface HostUsage {
  /** Percent of all CPUs since the former call; the first call looks at a short while. */
  readonly cpuPercent: number;
  readonly cpuCount: number;
  readonly memoryUsedBytes: number;
  readonly memoryTotalBytes: number;
  /** The file systems the server keeps its data on, each once; without those that never told their usage. */
  readonly disks: readonly HostDisk[];
}

export interface HostUsageProbe {
  machine(): Promise<MachineInfo>;
  usage(): Promise<HostUsage>;
}

/** How long the first call looks at the CPUs, milliseconds. */
const FIRST_LOOK_MS = 100;
/** Time in which the CPUs are not looked at again: the kernel counts in hundredths of a second. Milliseconds. */
const SHORTEST_LOOK_MS = 100;

/** Reads the host from `/proc`. `directories`: where the server keeps its data. */
export function createHostUsageProbe(deps: {
  readonly directories: readonly string[];
  readonly clock: Clock;
  readonly log: Log;
  readonly statfs?: (path: string) => Promise<FileSystemFacts>;
}): HostUsageProbe {
  const { clock, log } = deps;
  const diskUsage = createDiskUsage({ clock, log, statfs: deps.statfs ?? statfs });
  let former: CpuTimes | undefined;
  let lookedAt = Number.NEGATIVE_INFINITY;
  let percent = 0;

  async function cpuPercent(): Promise<number> {
    if (clock.monotonic() - lookedAt < SHORTEST_LOOK_MS) return percent;
    if (former === undefined) {
      former = parseCpuTimes(await readFile('/proc/stat', 'utf8'));
      await delay(clock, FIRST_LOOK_MS);
    }
    const now = parseCpuTimes(await readFile('/proc/stat', 'utf8'));
    percent = usedPercent(former, now);
    former = now;
    lookedAt = clock.monotonic();
    return percent;
  }

  return {
    async machine() {
      const info = parseCpuInfo(await readFile('/proc/cpuinfo', 'utf8'));
      return { ...info, cpuArchitecture: arch() === 'x64' ? 'x86_64' : arch() };
    },
    async usage() {
      const [percent, disks] = await Promise.all([
        cpuPercent(),
        readFile('/proc/self/mountinfo', 'utf8').then((text) =>
          readDisks(parseMounts(text), deps.directories, diskUsage),
        ),
      ]);
      const memory = hostMemory();
      return {
        cpuPercent: percent,
        cpuCount: availableParallelism(),
        memoryTotalBytes: memory.total,
        memoryUsedBytes: memory.total - memory.available,
        disks,
      };
    },
  };
}

/** Ticks since the host was started. */
export interface CpuTimes {
  readonly idle: number;
  readonly total: number;
}

/** The line of all CPUs of `/proc/stat`; guest time is part of user time already. */
export function parseCpuTimes(stat: string): CpuTimes {
  const line = /^cpu +(.*)$/m.exec(stat)?.[1] ?? '';
  const ticks = line.split(' ').slice(0, 8).map(Number);
  const [, , , idle = 0, iowait = 0] = ticks;
  return { idle: idle + iowait, total: ticks.reduce((sum, count) => sum + count, 0) };
}

/** The share of time in which a CPU did something, percent of all of them with two decimals. */
export function usedPercent(before: CpuTimes, after: CpuTimes): number {
  const total = after.total - before.total;
  if (total <= 0) return 0;
  const used = Math.min(total, Math.max(0, total - (after.idle - before.idle)));
  return Math.round((used / total) * 10_000) / 100;
}

/** Family, model and name of the first CPU; what an architecture does not tell is empty. */
export function parseCpuInfo(cpuinfo: string): Omit<MachineInfo, 'cpuArchitecture'> {
  const field = (name: string): string => new RegExp(`^${name}\\s*: (.*)$`, 'm').exec(cpuinfo)?.[1]?.trim() ?? '';
  return { cpuFamily: field('cpu family'), cpuModel: field('model'), cpuModelName: field('model name') };
}

export interface Mount {
  readonly mountPoint: string;
  readonly device: string;
  readonly filesystemType: string;
}

/** The mounts of `/proc/self/mountinfo`, in its order; names with blanks and the like are escaped there. */
export function parseMounts(mountinfo: string): readonly Mount[] {
  return mountinfo.split('\n').flatMap((line) => {
    const [front = '', back] = line.split(' - ');
    const mountPoint = front.split(' ')[4];
    const [filesystemType, device] = back?.split(' ') ?? [];
    if (mountPoint === undefined || filesystemType === undefined || device === undefined) return [];
    return [{ mountPoint: unescapeOctal(mountPoint), device: unescapeOctal(device), filesystemType }];
  });
}

function unescapeOctal(text: string): string {
  return text.replaceAll(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));
}

/** The mount a path lies on: the deepest one, the last of several on one point. */
export function mountOf(mounts: readonly Mount[], path: string): Mount | undefined {
  let found: Mount | undefined;
  for (const mount of mounts) {
    const { mountPoint } = mount;
    const contains = mountPoint === '/' || path === mountPoint || path.startsWith(`${mountPoint}/`);
    if (contains && mountPoint.length >= (found?.mountPoint.length ?? 0)) found = mount;
  }
  return found;
}

async function readDisks(
  mounts: readonly Mount[],
  directories: readonly string[],
  usageOf: ReturnType<typeof createDiskUsage>,
): Promise<readonly HostDisk[]> {
  const ours = new Map(
    directories.flatMap((path) => {
      const mount = mountOf(mounts, path);
      return mount === undefined ? [] : [[mount.mountPoint, { mount, path }] as const];
    }),
  );
  const disks = await Promise.all(
    [...ours.values()].map(async ({ mount, path }) => {
      const usage = await usageOf(mount, path);
      return usage === undefined ? [] : [{ ...mount, ...usage }];
    }),
  );
  return disks.flat();
}
