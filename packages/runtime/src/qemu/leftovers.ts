import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { findProcesses, killProcess, waitUntilGone } from '../processes.ts';
import type { EngineHost } from './engine-host.ts';
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

/**
 * Ends every engine a former server of this home left and removes what they used. Engines are found by the name in their
 * arguments, which no other process carries, and killed by pid and start time, so a reused pid is never hit.
 * Returns how many were ended.
 */
export async function removeLeftovers(host: EngineHost): Promise<number> {
  const { layout, cgroups, clock, log } = host;
  const engines = await findProcesses((argument) => argument.startsWith(`guest=${layout.namePrefix}`));
  await Promise.all(engines.map(killProcess));
  await Promise.all(engines.map((engine) => waitUntilGone(engine, clock, KILL_DEADLINE_MS)));
  for (const directory of [layout.sockets, layout.instances, layout.layers]) {
    for (const name of await entriesOf(directory)) await rm(join(directory, name), { recursive: true, force: true });
  }
  for (const name of await entriesOf(layout.templates)) {
    if (name.startsWith(UNFINISHED_PREFIX)) await rm(join(layout.templates, name), { recursive: true, force: true });
  }
  for (const name of await entriesOf(layout.disks)) {
    if (name.endsWith('.new')) await rm(join(layout.disks, name), { force: true });
  }
  for (const name of await cgroups.list(layout.namePrefix)) await cgroups.remove(name);
  if (engines.length > 0) log.info({ engines: engines.length }, 'engines of a former server were ended');
  return engines.length;
}
