import { rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { readTextIfPresent, writeFileAtomically } from '../lib/files.ts';
import type { SetupContext, SetupStep, StepResult, StepResults } from './step.ts';

/** How a step that needs root is run when this process is not root. */
export type RunAsRoot = (step: SetupStep) => Promise<void>;

/** Told about every step that runs; one that stands apart may end between the start and the end of another. */
export interface SetupReporter {
  started(step: SetupStep): void;
  finished(step: SetupStep, milliseconds: number): void;
}

interface Stamp {
  readonly key: string;
  readonly result: StepResult;
}

/**
 * Runs the steps whose result is not there, in order and those that stand apart beside them, and returns all results. A
 * step's stamp is removed before it runs and written after it, so an interrupted one runs again.
 */
export async function runSteps(
  steps: readonly SetupStep[],
  context: SetupContext,
  reporter: SetupReporter,
  runAsRoot: RunAsRoot,
): Promise<StepResults> {
  const needsAsking = (step: SetupStep): boolean => step.rootBecause !== undefined && context.uid !== 0;

  async function ensure(step: SetupStep, own: SetupContext, earlier: StepResults): Promise<StepResult> {
    const before = await currentResult(step, own, earlier);
    if (before !== undefined) return before;
    reporter.started(step);
    const started = performance.now();
    if (needsAsking(step)) await runAsRoot(step);
    else await runStep(step, own, earlier);
    const after = await currentResult(step, own, earlier);
    if (after === undefined) throw new Error(`${step.title}: not there although the step succeeded`);
    reporter.finished(step, performance.now() - started);
    return after;
  }

  /** Those that ask for a password do so in their turn, and what they say is told from what the others say. */
  const beside = new Map(
    steps
      .filter((step) => step.apart === true && !needsAsking(step))
      .map((step) => {
        const own = { ...context, progress: (text: string) => context.progress(`${step.title}: ${text}`) };
        return [step.name, ensure(step, own, {})] as const;
      }),
  );
  const settled = Promise.allSettled(beside.values());
  const results: Record<string, StepResult> = {};
  try {
    for (const step of steps) {
      const earlier = step.apart === true ? {} : results;
      results[step.name] = await (beside.get(step.name) ?? ensure(step, context, earlier));
    }
  } finally {
    // What it has done by then the next set-up need not do.
    await settled;
  }
  return results;
}

/** The result of a finished step whose inputs and files are unchanged, or undefined. */
export async function currentResult(
  step: SetupStep,
  context: SetupContext,
  earlier: StepResults,
): Promise<StepResult | undefined> {
  if (step.present !== undefined) return (await step.present(context)) ? { files: {}, facts: {} } : undefined;
  const text = await readTextIfPresent(stampPath(step, context));
  if (text === undefined) return undefined;
  const stamp = parseStamp(text);
  if (stamp === undefined || stamp.key !== (await step.key?.(context, earlier))) return undefined;
  for (const [file, bytes] of Object.entries(stamp.result.files)) {
    const size = await stat(join(context.paths.artifacts, file)).then(
      (status) => status.size,
      () => undefined,
    );
    if (size !== bytes) return undefined;
  }
  return stamp.result;
}

/** Runs one step whatever its stamp says. */
export async function runStep(step: SetupStep, context: SetupContext, earlier: StepResults): Promise<void> {
  await rm(stampPath(step, context), { force: true });
  const key = await step.key?.(context, earlier);
  let result: StepResult;
  try {
    result = await step.run(context, earlier);
  } finally {
    // By whoever made it: an ordinary user cannot remove what a step left behind as root.
    await rm(join(context.paths.scratch, step.name), { recursive: true, force: true });
  }
  if (key === undefined) return;
  const stamp: Stamp = { key, result };
  await writeFileAtomically(stampPath(step, context), `${JSON.stringify(stamp, null, 2)}\n`);
}

/** The stamped results of the steps before `step`; throws when one is not there. */
export async function earlierResults(
  steps: readonly SetupStep[],
  step: SetupStep,
  context: SetupContext,
): Promise<StepResults> {
  const results: Record<string, StepResult> = {};
  for (const earlier of steps) {
    if (earlier === step) break;
    const result = await currentResult(earlier, context, earlier.apart === true ? {} : results);
    if (result !== undefined) results[earlier.name] = result;
  }
  return results;
}

function stampPath(step: SetupStep, context: SetupContext): string {
  return join(context.paths.stamps, `${step.name}.json`);
}

/** A stamp is only trusted in the shape `runStep` writes; anything else counts as none. */
function parseStamp(text: string): Stamp | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    // Cut short by a crash of the machine: the step runs again.
    return undefined;
  }
  if (typeof value !== 'object' || value === null || !('key' in value) || !('result' in value)) return undefined;
  const { key, result } = value;
  if (typeof key !== 'string' || typeof result !== 'object' || result === null) return undefined;
  if (!('files' in result) || !('facts' in result)) return undefined;
  return { key, result: { files: recordOf(result.files, Number), facts: recordOf(result.facts, String) } };
}

function recordOf<T>(value: unknown, convert: (item: unknown) => T): Record<string, T> {
  if (typeof value !== 'object' || value === null) return {};
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, convert(item)]));
}
