/**
 * Set-up after the toolchain: `node scripts/setup/main.ts [--quiet] [--refresh] [--step NAME]`. The launcher calls it
 * under the set-up lock. `--quiet` prints nothing when everything is there, `--refresh` fetches Debian's packages anew,
 * `--step` runs one step now (how sudo is used).
 */
import { spawnSync } from 'node:child_process';
import { appendFileSync } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { createSetupContext } from '../lib/context.ts';
import { repositoryPaths } from '../lib/paths.ts';
import { fetchLists } from './apt/lists.ts';
import { writeIndex } from './index-file.ts';
import { createConsoleReporter, seconds } from './reporter.ts';
import { earlierResults, runStep, runSteps } from './runner.ts';
import { setupSteps } from './steps.ts';

const paths = repositoryPaths();
const { values } = parseArgs({
  options: {
    quiet: { type: 'boolean', default: false },
    refresh: { type: 'boolean', default: false },
    step: { type: 'string' },
  },
});
/** Steps whose result depends on what Debian's mirrors offer today. */
const REFRESHABLE = ['kernel', 'debian'];
const started = performance.now();
const reporter = createConsoleReporter(
  { write: (text) => process.stdout.write(text), columns: process.stdout.isTTY ? process.stdout.columns : undefined },
  () => performance.now(),
);
const lock = process.env.AENV_SETUP_LOCK_FD;
const context = createSetupContext(
  paths,
  { log: (text) => appendFileSync(paths.log, text), progress: reporter.progress },
  lock === undefined ? undefined : Number(lock),
);

function runAsRoot(name: string, because: string): void {
  console.log(`set-up: root is needed ${because}; sudo may ask for your password`);
  const script = fileURLToPath(import.meta.url);
  const kept = Object.keys(process.env).filter((variable) => /^((https?|no)_proxy|LANG|LC_ALL)$/i.test(variable));
  const { status, error } = spawnSync(
    'sudo',
    [`--preserve-env=${kept.join(',')}`, process.execPath, script, '--step', name],
    {
      stdio: 'inherit',
    },
  );
  if (error !== undefined)
    throw new Error(`root is needed ${because}, and sudo cannot be started: run ./aenv setup as root`);
  if (status !== 0) throw new Error(`the step as root failed`);
}

async function main(): Promise<void> {
  if (context.architecture !== 'amd64') throw new Error('microVMs are built for amd64, and this machine is not');
  const steps = setupSteps();
  for (const directory of [paths.artifacts, paths.stamps, paths.scratch]) await mkdir(directory, { recursive: true });
  if (values.step !== undefined) {
    const step = steps.find(({ name }) => name === values.step);
    if (step === undefined) throw new Error(`no set-up step ${values.step}`);
    await runStep(step, context, await earlierResults(steps, step, context));
    return;
  }
  if (values.refresh) {
    await fetchLists(context);
    for (const name of REFRESHABLE) await rm(join(paths.stamps, `${name}.json`), { force: true });
  }
  const results = await runSteps(steps, context, reporter, async (step) =>
    runAsRoot(step.name, step.rootBecause ?? ''),
  );
  await writeIndex(context, results);
  if (!values.quiet) console.log(`set-up: everything is there (${seconds(performance.now() - started)})`);
}

main().catch((caught: unknown) => {
  console.error(`\nset-up failed: ${caught instanceof Error ? caught.message : String(caught)}`);
  console.error(`the whole output is in ${paths.log}; run ./aenv setup again to go on from here`);
  process.exitCode = 1;
});
