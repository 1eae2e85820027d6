/**
 * `./aenv test [--project NAME]... [FILTER...]`: every check and test with the time of each stage, a leak check, and
 * `N passed, N failed` as the last line. vitest's report over all projects is left in `reports/tests.json`.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { readTextIfPresent } from './lib/files.ts';
import { repositoryPaths } from './lib/paths.ts';
import { seconds } from './setup/reporter.ts';
import { leaksBetween, snapshotHost } from './testing/leaks.ts';
import { failuresIn, mergeReports, type TestReport } from './testing/report.ts';
import { type CommandStage, parseTestArguments, staticStages, testStage } from './testing/stages.ts';

/** How long what a test ended may take to be gone, milliseconds. */
const SETTLE_MS = 5_000;
/** Kept of what a check prints, characters. */
const MAX_OUTPUT = 1024 * 1024;

type RunningStage = ChildProcess & { readonly began: number };

const { root } = repositoryPaths();
const reports = join(root, 'reports');
const env = {
  ...process.env,
  PATH: `${dirname(process.execPath)}:${process.env.PATH ?? ''}`,
  ...(process.stdout.isTTY ? {} : { NO_COLOR: '1' }),
};

/** Runs a stage with its output on this terminal; true when it exits with 0 in time. */
async function runStage(stage: CommandStage): Promise<boolean> {
  console.log(`\n== ${stage.name}`);
  return endOfStage(stage, startStage(stage, 'inherit'));
}

/** Runs stages on all cores, each with its output in one piece at its end; returns the names of those that failed. */
async function runTogether(stages: readonly CommandStage[]): Promise<readonly string[]> {
  const waiting = [...stages];
  const failed: string[] = [];
  async function work(): Promise<void> {
    for (let stage = waiting.shift(); stage !== undefined; stage = waiting.shift()) {
      const child = startStage(stage, 'pipe');
      let output = '';
      for (const stream of [child.stdout, child.stderr]) {
        stream?.setEncoding('utf8').on('data', (text: string) => {
          output = (output + text).slice(-MAX_OUTPUT);
        });
      }
      const before = (): void => console.log(`\n== ${stage.name}\n${output}`.trimEnd());
      if (!(await endOfStage(stage, child, before))) failed.push(stage.name);
    }
  }
  await Promise.all(Array.from({ length: availableParallelism() }, work));
  return failed;
}

function startStage(stage: CommandStage, output: 'inherit' | 'pipe'): RunningStage {
  const child = spawn(process.execPath, stage.args, {
    cwd: root,
    env,
    stdio: ['ignore', output, output],
    timeout: stage.timeoutMs,
    killSignal: 'SIGKILL',
  });
  return Object.assign(child, { began: performance.now() });
}

async function endOfStage(stage: CommandStage, child: RunningStage, beforeVerdict?: () => void): Promise<boolean> {
  const [code, signal] = await once(child, 'close');
  const took = seconds(performance.now() - child.began);
  beforeVerdict?.();
  if (code === 0) console.log(`== ${stage.name}: ok in ${took}`);
  else console.log(`== ${stage.name}: FAILED after ${took} (${signal === null ? `exit code ${code}` : signal})`);
  return code === 0;
}

/** Waits until nothing new is left on the host, at most `SETTLE_MS`; returns what is. */
async function remainingLeaks(before: Awaited<ReturnType<typeof snapshotHost>>): Promise<readonly string[]> {
  const deadline = performance.now() + SETTLE_MS;
  for (;;) {
    const leaks = leaksBetween(before, await snapshotHost());
    if (leaks.length === 0 || performance.now() > deadline) return leaks;
    await delay(200);
  }
}

async function main(args: readonly string[]): Promise<number> {
  const { projects, filters } = parseTestArguments(args);
  await rm(reports, { recursive: true, force: true });
  await mkdir(reports, { recursive: true });
  const began = performance.now();
  const failedStages: string[] = [];

  if (args.length === 0) {
    failedStages.push(...(await runTogether(await staticStages(root))));
  }

  const before = await snapshotHost();
  const found: TestReport[] = [];
  for (const project of projects) {
    const reportFile = join(reports, `${project}.json`);
    const stage = testStage(project, filters, reportFile);
    const ok = await runStage(stage);
    const text = await readTextIfPresent(reportFile);
    const report: TestReport | undefined = text === undefined ? undefined : JSON.parse(text);
    if (report !== undefined) found.push(report);
    // Ended by its deadline, or an error outside any test.
    if (!ok && (report === undefined || failuresIn(report) === 0)) failedStages.push(stage.name);
  }

  console.log('\n== leak check');
  const leaks = await remainingLeaks(before);
  for (const leak of leaks) console.log(`left behind: ${leak}`);
  if (leaks.length > 0) failedStages.push('leak check');
  console.log(`== leak check: ${leaks.length === 0 ? 'ok' : 'FAILED'}`);

  const merged = found.length === 0 ? undefined : mergeReports(found);
  if (merged !== undefined) await writeFile(join(reports, 'tests.json'), JSON.stringify(merged));
  const passed = merged?.numPassedTests ?? 0;
  const failed = (merged === undefined ? 0 : failuresIn(merged)) + failedStages.length;
  console.log(`\nall stages: ${seconds(performance.now() - began)}`);
  if (merged !== undefined && merged.numPendingTests > 0) console.log(`skipped tests: ${merged.numPendingTests}`);
  if (failedStages.length > 0) console.log(`failed stages: ${failedStages.join(', ')}`);
  if (passed + failed === 0) console.log('no test was run');
  console.log(`${passed} passed, ${failed} failed`);
  return failed === 0 && passed > 0 ? 0 : 1;
}

process.exitCode = await main(process.argv.slice(2));
