/**
 * Set-up after the toolchain: `node scripts/setup/main.ts [--quiet | --step NAME]`. The launcher calls it under the
 * set-up lock. `--quiet` prints nothing when everything is there; `--step` runs one step now (how sudo is used).
 */
import { spawnSync } from 'node:child_process';
import { appendFileSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { run } from '../lib/command.ts';
import { repositoryPaths } from '../lib/paths.ts';
import { writeIndex } from './index-file.ts';
import { createConsoleReporter, seconds } from './reporter.ts';
import { earlierResults, runStep, runSteps } from './runner.ts';
import type { SetupContext } from './step.ts';
import { setupSteps } from './steps.ts';

const paths = repositoryPaths();
const { values } = parseArgs({ options: { quiet: { type: 'boolean', default: false }, step: { type: 'string' } } });
const started = performance.now();
const reporter = createConsoleReporter(
  { write: (text) => process.stdout.write(text), columns: process.stdout.isTTY ? process.stdout.columns : undefined },
  () => performance.now(),
);
const architectures: Readonly<Record<string, 'amd64' | 'arm64'>> = { x64: 'amd64', arm64: 'arm64' };
const lock = process.env.AENV_SETUP_LOCK_FD;

const logged = (text: string): void => appendFileSync(paths.log, text);

// An ordinary user's PATH lacks the directories of mke2fs, depmod and the like.
const env = { ...process.env, PATH: `${process.env.PATH ?? ''}:/usr/sbin:/sbin` };

const context: SetupContext = {
  paths,
  env,
  architecture: architectures[process.arch] ?? 'amd64',
  uid: process.getuid?.() ?? 0,
  progress: (text) => {
    logged(`# ${text}\n`);
    reporter.progress(text);
  },
  run: (command, args, options = {}) => {
    logged(`$ ${[command, ...args].join(' ')}\n`);
    const inheritFd = lock === undefined ? undefined : Number(lock);
    return run(command, args, { timeoutMs: 120_000, env, inheritFd, onOutput: logged, ...options });
  },
  scratch: async (name) => {
    const directory = join(paths.scratch, name);
    await rm(directory, { recursive: true, force: true });
    await mkdir(directory, { recursive: true });
    return directory;
  },
};

function runAsRoot(name: string, because: string): void {
  console.log(`set-up: root is needed ${because}; sudo may ask for your password`);
  const script = fileURLToPath(import.meta.url);
  const kept = Object.keys(process.env).filter((variable) =>
    /^(AENV_|CI$|npm_config_|(https?|no)_proxy$|NODE_EXTRA_CA_CERTS$)/i.test(variable),
  );
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
  const steps = setupSteps();
  await mkdir(paths.artifacts, { recursive: true });
  if (values.step !== undefined) {
    const step = steps.find(({ name }) => name === values.step);
    if (step === undefined) throw new Error(`no set-up step ${values.step}`);
    reporter.started(step);
    await runStep(step, context, await earlierResults(steps, step, context));
    return;
  }
  await writeFile(paths.log, '');
  const results = await runSteps(steps, context, reporter, async (step) =>
    runAsRoot(step.name, step.rootBecause ?? ''),
  );
  await rm(paths.scratch, { recursive: true, force: true });
  await writeIndex(context, results);
  if (!values.quiet) console.log(`set-up: everything is there (${seconds(performance.now() - started)})`);
}

main().catch((caught: unknown) => {
  console.error(`\nset-up failed: ${caught instanceof Error ? caught.message : String(caught)}`);
  console.error(`the whole output is in ${paths.log}; run ./aenv setup again to go on from here`);
  process.exitCode = 1;
});
