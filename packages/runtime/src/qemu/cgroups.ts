import { access, mkdir, readdir, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Clock, Log } from '@agentenv/core';

/**
 * All sandboxes together weigh three quarters of one ordinary group or process, so the server answers while guests
 * compute, and guests are not starved by whatever else runs on the host.
 */
const WEIGHT_V2 = 75;
const SHARES_V1 = 768;
const PARENT = 'aenv';
const REMOVE_ATTEMPTS = 200;
const REMOVE_POLL_MS = 10;

interface Hierarchy {
  /** Directory of the parent group of all engines. */
  readonly directory: string;
  /** How much all engines together weigh; set with every engine, as another server may have made the group anew. */
  readonly weight: { readonly file: string; readonly value: number } | undefined;
  /** File that limits memory, where this hierarchy has one. */
  readonly memoryLimit: string | undefined;
}

/** Control groups of engines, one per engine, outside the server's own. */
export interface EngineCgroups {
  /** Why engines run without a group, or without a weight; undefined when nothing is missing. */
  readonly limitation: string | undefined;
  /** Directories the engine has to join; empty where control groups cannot be made. */
  create(name: string, memoryBytes: number): Promise<readonly string[]>;
  /** Removes the engine's groups once its processes are gone. */
  remove(name: string): Promise<void>;
  /** Names of existing groups that begin with `prefix`. */
  list(prefix: string): Promise<readonly string[]>;
  /** Removes the parent groups when they are empty. */
  removeParents(): Promise<void>;
}

async function exists(path: string): Promise<boolean> {
  try {
    await access(path);
    return true;
  } catch {
    return false;
  }
}

/** True when the value was written; a kernel or container that forbids it is a limitation, not an error. */
async function tryWrite(path: string, value: string): Promise<boolean> {
  try {
    await writeFile(path, value);
    return true;
  } catch {
    return false;
  }
}

async function tryMakeDirectory(path: string): Promise<boolean> {
  try {
    await mkdir(path, { recursive: true });
    return true;
  } catch {
    return false;
  }
}

async function setWeight(directory: string, weight: Hierarchy['weight']): Promise<boolean> {
  return weight !== undefined && (await tryWrite(join(directory, weight.file), String(weight.value)));
}

interface Discovery {
  readonly hierarchies: readonly Hierarchy[];
  readonly weighted: boolean;
}

async function discoverUnified(root: string): Promise<Discovery> {
  for (const controller of ['+cpu', '+memory']) await tryWrite(join(root, 'cgroup.subtree_control'), controller);
  const directory = join(root, PARENT);
  if (!(await tryMakeDirectory(directory))) return { hierarchies: [], weighted: false };
  const weight = { file: 'cpu.weight', value: WEIGHT_V2 };
  const weighted = await setWeight(directory, weight);
  const memory = await tryWrite(join(directory, 'cgroup.subtree_control'), '+memory');
  return { hierarchies: [{ directory, weight, memoryLimit: memory ? 'memory.max' : undefined }], weighted };
}

async function firstWith(root: string, names: readonly string[], file: string): Promise<string | undefined> {
  for (const name of names) {
    if (await exists(join(root, name, file))) return join(root, name);
  }
  return undefined;
}

async function discoverLegacy(root: string): Promise<Discovery> {
  const hierarchies: Hierarchy[] = [];
  let weighted = false;
  const cpu = await firstWith(root, ['cpu', 'cpu,cpuacct'], 'cpu.shares');
  if (cpu !== undefined && (await tryMakeDirectory(join(cpu, PARENT)))) {
    const weight = { file: 'cpu.shares', value: SHARES_V1 };
    weighted = await setWeight(join(cpu, PARENT), weight);
    hierarchies.push({ directory: join(cpu, PARENT), weight, memoryLimit: undefined });
  }
  const memory = await firstWith(root, ['memory'], 'memory.limit_in_bytes');
  if (memory !== undefined && (await tryMakeDirectory(join(memory, PARENT)))) {
    const directory = join(memory, PARENT);
    hierarchies.push({ directory, weight: undefined, memoryLimit: 'memory.limit_in_bytes' });
  }
  return { hierarchies, weighted };
}

function limitationOf({ hierarchies, weighted }: Discovery): string | undefined {
  if (hierarchies.length === 0) return 'control groups cannot be created here, engines run without limits of their own';
  if (!weighted) return 'the cpu controller is not available, engines are only reniced below the server';
  return undefined;
}

/** Finds out what `root` (`/sys/fs/cgroup`) offers: version 2, or the version 1 hierarchies beside it. */
export async function createEngineCgroups(options: {
  readonly root: string;
  readonly clock: Clock;
  readonly log: Log;
}): Promise<EngineCgroups> {
  const { root, clock, log } = options;
  const unified = await exists(join(root, 'cgroup.controllers'));
  const discovery = unified ? await discoverUnified(root) : await discoverLegacy(root);
  const { hierarchies } = discovery;

  /** A group stays busy for a moment after its last process was reaped. */
  async function removeGroup(directory: string): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      try {
        await rmdir(directory);
        return;
      } catch (caught) {
        const code = caught instanceof Error && 'code' in caught ? caught.code : undefined;
        if (code === 'ENOENT') return;
        if (code !== 'EBUSY' || attempt === REMOVE_ATTEMPTS) {
          log.warn({ directory, code }, 'a control group could not be removed');
          return;
        }
      }
      await new Promise<void>((resolve) => {
        clock.timer(REMOVE_POLL_MS, resolve);
      });
    }
  }

  return {
    limitation: limitationOf(discovery),
    async create(name, memoryBytes) {
      const directories: string[] = [];
      for (const hierarchy of hierarchies) {
        const directory = join(hierarchy.directory, name);
        if (!(await tryMakeDirectory(directory))) continue;
        await setWeight(hierarchy.directory, hierarchy.weight);
        if (hierarchy.memoryLimit !== undefined) {
          await tryWrite(join(directory, hierarchy.memoryLimit), String(memoryBytes));
        }
        directories.push(directory);
      }
      return directories;
    },
    async remove(name) {
      await Promise.all(hierarchies.map((hierarchy) => removeGroup(join(hierarchy.directory, name))));
    },
    async list(prefix) {
      const names = new Set<string>();
      for (const { directory } of hierarchies) {
        for (const entry of await readdir(directory, { withFileTypes: true }).catch(() => [])) {
          if (entry.isDirectory() && entry.name.startsWith(prefix)) names.add(entry.name);
        }
      }
      return [...names];
    },
    async removeParents() {
      // Another server on this host may still have engines; its groups keep the parent.
      for (const { directory } of hierarchies) await rmdir(directory).catch(() => undefined);
    },
  };
}
