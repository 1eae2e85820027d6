import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { findProcesses, killProcess, type ProcessIdentity, waitUntilGone } from '../processes.ts';
import type { EngineHost, EngineLayout } from './engine-host.ts';
import { UNFINISHED_PREFIX } from './templates.ts';

const KILL_DEADLINE_MS = 10_000;

async function entriesOf(directory: string): Promise<readonly string[]> {
  try {
    return await readdir(directory);
  } catch (caught) {
    if (caught instanceof Error && 'code' in caught && caught.code === 'ENOENT') return [];
    throw caught;
  }
}

/** Engines of this home, whoever started them, by name: it is in their arguments, which no other process carries. */
export async function findEngines({ namePrefix }: EngineLayout): Promise<ReadonlyMap<string, ProcessIdentity>> {
  const named = new RegExp(`^guest=(${namePrefix}[0-9a-f]+)(,|$)`);
  const processes = await findProcesses((argument) => named.test(argument));
  return new Map(processes.map(({ argument, ...identity }) => [named.exec(argument)?.[1] ?? '', identity]));
}

/**
 * Ends every engine a former server of this home left, but for those named in `spared`, and removes what they used. They are
 * killed by pid and start time, so a reused pid is never hit.
 */
export async function removeLeftovers(host: EngineHost, spared: ReadonlySet<string>): Promise<void> {
  const { layout, cgroups, clock, log } = host;
  const engines = [...(await findEngines(layout))].flatMap(([name, identity]) => (spared.has(name) ? [] : identity));
  await Promise.all(engines.map(killProcess));
  await Promise.all(engines.map((engine) => waitUntilGone(engine, clock, KILL_DEADLINE_MS)));
  for (const directory of [layout.sockets, layout.instances, layout.layers]) {
    for (const name of await entriesOf(directory)) {
      if (!spared.has(layout.namePrefix + name)) await rm(join(directory, name), { recursive: true, force: true });
    }
  }
  for (const name of await entriesOf(layout.templates)) {
    if (name.startsWith(UNFINISHED_PREFIX)) await rm(join(layout.templates, name), { recursive: true, force: true });
  }
  for (const name of await entriesOf(layout.disks)) {
    if (name.endsWith('.new')) await rm(join(layout.disks, name), { force: true });
  }
  for (const name of await cgroups.list(layout.namePrefix)) if (!spared.has(name)) await cgroups.remove(name);
  if (engines.length > 0) log.info({ engines: engines.length }, 'engines of a former server were ended');
}
