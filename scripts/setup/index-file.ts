import { join } from 'node:path';
import { readTextIfPresent, writeFileAtomically } from '../lib/files.ts';
import type { SetupContext, StepResults } from './step.ts';

/** `artifacts.json` as `loadArtifacts` of the runtime package reads it; written when every file it names is complete. */
export async function writeIndex(context: SetupContext, results: StepResults): Promise<void> {
  const path = join(context.paths.artifacts, 'artifacts.json');
  const text = `${JSON.stringify(artifactIndex(results), null, 2)}\n`;
  if ((await readTextIfPresent(path)) !== text) await writeFileAtomically(path, text);
}

/** The index of what the steps made. Throws when a step's result is missing. */
export function artifactIndex(results: StepResults): unknown {
  const entry = (step: string, role: string) => {
    const result = results[step];
    const file = result?.facts[`${role}File`];
    const digest = result?.facts[`${role}Digest`];
    const bytes = file === undefined ? undefined : result?.files[file];
    if (file === undefined || digest === undefined || bytes === undefined)
      throw new Error(`set-up step ${step} left no ${role}`);
    return { file, digest, bytes };
  };
  return {
    format: 1,
    kernel: {
      ...entry('kernel', 'kernel'),
      version: results.kernel?.facts.version,
      package: results.kernel?.facts.package,
    },
    initramfs: entry('initramfs', 'initramfs'),
    guest: entry('guest', 'guest'),
    launcher: entry('guest', 'launcher'),
    rootfs: { base: { ...entry('rootfs', 'rootfs'), contentDigest: results.rootfs?.facts.rootfsContentDigest } },
  };
}
