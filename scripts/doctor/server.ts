/** What only the server's own code can tell; loaded by the doctor when npm packages are there. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { SILENT_LOG } from '@agentenv/core';
import {
  createProcessStarter,
  createQemuBackend,
  type HostArtifacts,
  loadArtifacts,
  type NetworkSlots,
} from '@agentenv/runtime';
import { systemClock } from '../../packages/server/src/clock.ts';
import { loadConfig } from '../../packages/server/src/config/load.ts';
import type { Config } from '../../packages/server/src/config/schema.ts';
import { systemRng } from '../../packages/server/src/rng.ts';
import type { CheckResult } from './check.ts';

/** The configuration the server would start with, or why it would refuse to. */
export async function readServerConfig(
  root: string,
  env: NodeJS.ProcessEnv,
  path: string | undefined,
): Promise<{ readonly check: CheckResult; readonly config?: Config }> {
  const name = 'configuration';
  try {
    const config = loadConfig({
      file: path === undefined ? undefined : { path, text: await readFile(path, 'utf8') },
      environment: env,
      workingDirectory: process.cwd(),
      installDirectory: root,
    });
    return { check: { name, state: 'ok', detail: path ?? 'defaults and AENV_* variables' }, config };
  } catch (caught) {
    return { check: { name, state: 'missing', detail: messageOf(caught), remedy: 'see docs/configuration.md' } };
  }
}

/** One check per backend: is it usable here, how fast, and what limits it? */
export async function checkBackends(config: Config, uid: number): Promise<readonly CheckResult[]> {
  const name = 'backend qemu';
  let artifacts: HostArtifacts;
  try {
    artifacts = await loadArtifacts(config.deps_path);
  } catch (caught) {
    return [{ name, state: 'missing', detail: messageOf(caught), remedy: './aenv setup' }];
  }
  if (uid !== 0) return [{ name, state: 'warning', detail: 'only root can tell', remedy: 'sudo ./aenv doctor' }];
  await using starter = createProcessStarter();
  await using backend = createQemuBackend({
    artifacts,
    home: join(config.home_path, 'qemu'),
    runtimeDir: config.runtime_path,
    slots: NO_SLOTS,
    starter,
    clock: systemClock,
    rng: systemRng,
    log: SILENT_LOG,
    accelerator: config['qemu.accelerator'],
    pool: { low: 0, high: 0 },
    engines: { low: 0, high: 0 },
  });
  const probe = await backend.probe();
  const detail = [`${probe.isolation}, ${probe.accelerator}, ${probe.speedClass}`, ...probe.reasons].join('; ');
  const remedy = probe.remedies.join('; ');
  const state = !probe.usable ? 'missing' : probe.reasons.length > 0 ? 'warning' : 'ok';
  return [remedy === '' ? { name, state, detail } : { name, state, detail, remedy }];
}

/** A diagnosis starts nothing, so it has no network to give. */
const NO_SLOTS: NetworkSlots = {
  acquire: () => Promise.reject(new Error('the doctor starts no sandbox')),
  adopt: () => Promise.reject(new Error('the doctor takes over no sandbox')),
  removeLeftovers: async () => 0,
  abandon: async () => {},
  status: () => ({ ready: 0, inUse: 0 }),
  [Symbol.asyncDispose]: async () => {},
};

function messageOf(caught: unknown): string {
  return caught instanceof Error ? caught.message.replaceAll('\n', ' ') : String(caught);
}
