import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { readTextIfPresent, sha256File } from '../lib/files.ts';
import { currentResult } from '../setup/runner.ts';
import type { SetupContext, SetupStep, StepResult } from '../setup/step.ts';
import type { CheckResult } from './check.ts';

/** One check per set-up step: is its result there, and made from the present sources? */
export async function checkSteps(steps: readonly SetupStep[], context: SetupContext): Promise<readonly CheckResult[]> {
  const results: CheckResult[] = [];
  const earlier: Record<string, StepResult> = {};
  for (const step of steps) {
    const result = await currentResult(step, context, earlier);
    if (result === undefined) {
      results.push({
        name: step.title,
        state: 'missing',
        detail: 'not there, incomplete or made from other sources',
        remedy: './aenv setup',
      });
      continue;
    }
    earlier[step.name] = result;
    results.push({ name: step.title, state: 'ok', detail: Object.keys(result.files).join(', ') || 'there' });
  }
  return results;
}

/** Reads every artefact of the index again and compares its digest. */
export async function checkDigests(directory: string): Promise<CheckResult> {
  const name = 'artefacts';
  const text = await readTextIfPresent(join(directory, 'artifacts.json'));
  if (text === undefined)
    return { name, state: 'missing', detail: `no artifacts.json in ${directory}`, remedy: './aenv setup' };
  const entries = artifactEntries(JSON.parse(text));
  const wrong: string[] = [];
  for (const { file, digest } of entries) {
    const path = join(directory, file);
    const present = await stat(path).then(
      () => true,
      () => false,
    );
    if (!present) wrong.push(`${file} is missing`);
    else if ((await sha256File(path)) !== digest) wrong.push(`${file} was changed`);
  }
  if (wrong.length === 0) return { name, state: 'ok', detail: `${entries.length} files, contents verified` };
  return { name, state: 'missing', detail: wrong.join(', '), remedy: `remove ${directory} and run ./aenv setup` };
}

/** Files and content digests in an index, at any depth; an image's `digest` is of its inputs, so its `contentDigest` counts. */
export function artifactEntries(index: unknown): readonly { file: string; digest: string }[] {
  if (typeof index !== 'object' || index === null) return [];
  if ('file' in index && 'digest' in index) {
    const digest = 'contentDigest' in index ? index.contentDigest : index.digest;
    return [{ file: String(index.file), digest: String(digest) }];
  }
  return Object.values(index).flatMap(artifactEntries);
}
