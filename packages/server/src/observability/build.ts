import { readFile } from 'node:fs/promises';
import { join } from 'node:path';

/** What is running. */
export interface Build {
  readonly version: string;
  /** Of the checkout; empty when it is none. */
  readonly commit: string;
}

const COMMIT = /^[0-9a-f]{40,64}$/;

/** Reads version and commit of the checkout in `directory`. */
export async function readBuild(directory: string): Promise<Build> {
  const text = await readIfPresent(join(directory, 'package.json'));
  const { version = '' } = JSON.parse(text ?? '{}') as { readonly version?: string };
  return { version, commit: await readCommit(join(directory, '.git')) };
}

async function readCommit(git: string): Promise<string> {
  const head = (await readIfPresent(join(git, 'HEAD')))?.trim() ?? '';
  const reference = /^ref: (refs\/[\w./-]+)$/.exec(head)?.[1];
  if (reference === undefined) return COMMIT.test(head) ? head : '';
  const loose = (await readIfPresent(join(git, reference)))?.trim() ?? '';
  if (COMMIT.test(loose)) return loose;
  const packed = (await readIfPresent(join(git, 'packed-refs'))) ?? '';
  const line = packed.split('\n').find((candidate) => candidate.endsWith(` ${reference}`));
  const [commit = ''] = line?.split(' ') ?? [];
  return COMMIT.test(commit) ? commit : '';
}

/** Not being there, or not being readable, is no reason not to start. */
async function readIfPresent(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8');
  } catch {
    return undefined;
  }
}
