import { createHash } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { type Clock, type Log, PlatformError, type Rng } from '@agentenv/core';
import type { HostArtifacts } from '../artifacts.ts';
import type { ProcessStarter } from '../process-starter.ts';
import type { BackgroundJobs } from './background-jobs.ts';
import type { EngineCgroups } from './cgroups.ts';
import type { MemoryThread } from './memory-thread.ts';
import { type Accelerator, AGENT_SOCKET } from './qemu-args.ts';

/** `sun_path` without its terminating zero. */
const MAX_SOCKET_PATH = 107;
/** Hexadecimal digits of an engine's short name. */
export const SHORT_NAME_LENGTH = 10;

/** Where this backend keeps what. Everything is root's alone; engines reach their files by inherited descriptors. */
export interface EngineLayout {
  readonly home: string;
  /** One directory per engine: its sockets. */
  readonly sockets: string;
  /** One directory per engine: its writable disk. */
  readonly instances: string;
  /** One directory per engine: the frozen layers below its writable disk. */
  readonly layers: string;
  /** Captured templates by key. */
  readonly templates: string;
  /** Empty file systems by size. */
  readonly disks: string;
  /** Begins the name of every engine and control group of this server. */
  readonly namePrefix: string;
}

/** What every part of the backend works with on this host. */
export interface EngineHost {
  readonly layout: EngineLayout;
  readonly artifacts: HostArtifacts;
  readonly enginePath: string;
  readonly engineVersion: string;
  readonly accelerator: Accelerator;
  readonly fingerprint: Readonly<Record<string, string>>;
  readonly cgroups: EngineCgroups;
  readonly starter: ProcessStarter;
  readonly memory: MemoryThread;
  readonly background: BackgroundJobs;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly log: Log;
}

/** Names of the directories; rejects a runtime directory too long for the sockets below it with `invalid_argument`. */
export function engineLayout(home: string, runtimeDir: string): EngineLayout {
  const sockets = join(runtimeDir, 'i');
  const longest = join(sockets, 'x'.repeat(SHORT_NAME_LENGTH), AGENT_SOCKET);
  if (Buffer.byteLength(longest) > MAX_SOCKET_PATH) {
    const excess = Buffer.byteLength(longest) - MAX_SOCKET_PATH;
    throw new PlatformError(
      'invalid_argument',
      `runtime_path ${runtimeDir} is ${excess} bytes too long for the sockets below it`,
    );
  }
  const tag = createHash('sha256').update(home).digest('hex').slice(0, 8);
  return {
    home,
    sockets,
    instances: join(home, 'instances'),
    layers: join(home, 'layers'),
    templates: join(home, 'templates'),
    disks: join(home, 'disks'),
    namePrefix: `aenv-${tag}-`,
  };
}

/** Creates the directories, each closed to everybody else. */
export async function makeLayout(layout: EngineLayout): Promise<void> {
  for (const directory of [layout.sockets, layout.instances, layout.layers, layout.templates, layout.disks]) {
    await mkdir(directory, { recursive: true, mode: 0o700 });
  }
}
