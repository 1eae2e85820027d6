import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { readTextIfPresent } from '../../lib/files.ts';
import type { SetupContext, SetupStep, StepResult } from '../step.ts';
import { findProgram, hostPackages, missingPackages } from './packages.ts';

/** How long apt waits for another apt or dpkg, seconds. */
const LOCK_WAIT_SECONDS = 300;

/** Debian packages of the host. Recognised by their files, so that a machine that has them needs neither apt nor root. */
export function aptStep(): SetupStep {
  return {
    name: 'packages',
    title: 'Debian packages',
    rootBecause: 'to install missing Debian packages with apt-get',
    present: async (context) => (await missing(context)).length === 0 && !(await wasInterrupted(context)),
    run: install,
  };
}

/** Left behind by a killed apt: files may be there while their package is not configured. */
function marker(context: SetupContext): string {
  return join(context.paths.state, 'apt-running');
}

async function wasInterrupted(context: SetupContext): Promise<boolean> {
  return (await readTextIfPresent(marker(context))) !== undefined;
}

async function missing(context: SetupContext) {
  return missingPackages(hostPackages(context.architecture), context.env.PATH);
}

async function install(context: SetupContext): Promise<StepResult> {
  const names = (await missing(context)).map(({ name }) => name);
  if ((await findProgram('apt-get', context.env.PATH)) === undefined) {
    throw new Error(
      `this is not Debian (no apt-get), so these must be installed by hand first, under whatever name they have here:\n` +
        (await missing(context)).map(({ name, provides, why }) => `  ${name} (${provides}): ${why}`).join('\n'),
    );
  }
  const env = { ...context.env, DEBIAN_FRONTEND: 'noninteractive', LC_ALL: 'C.UTF-8' };
  const options = { env, timeoutMs: 1_200_000 };
  await writeFile(marker(context), '');
  await context.run('dpkg', ['--configure', '-a'], options);
  context.progress('fetching package lists');
  // A broken third-party source fails the update as a whole; what matters is whether the packages can be installed.
  await context.run('apt-get', ['update'], options).catch((caught: unknown) => {
    context.progress(
      `apt-get update complained: ${caught instanceof Error ? caught.message.split('\n')[0] : String(caught)}`,
    );
  });
  context.progress(names.length === 0 ? 'finishing an interrupted installation' : `installing ${names.join(' ')}`);
  const apt = [`-oDPkg::Lock::Timeout=${LOCK_WAIT_SECONDS}`, '-y', '--no-install-recommends', '--fix-broken'];
  await context.run('apt-get', [...apt, 'install', ...names], options);
  const left = await missing(context);
  if (left.length > 0) throw new Error(`still missing after apt-get: ${left.map(({ name }) => name).join(' ')}`);
  await rm(marker(context));
  return { files: {}, facts: {} };
}
