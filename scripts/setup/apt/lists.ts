import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { SetupContext } from '../step.ts';

/**
 * Options with which apt knows `packageName`: those for private lists when there are any, else none when the machine's
 * own package lists know it, else for private lists fetched now. Needs no root and leaves the machine's lists alone.
 */
export function aptOptions(context: SetupContext, packageName: string): Promise<readonly string[]> {
  return context.exclusive(async () => {
    const own = privateOptions(context);
    if (await isKnown(context, own, packageName)) return own;
    if (await isKnown(context, [], packageName)) return [];
    await fetchLists(context);
    if (await isKnown(context, own, packageName)) return own;
    throw new Error(
      `no package ${packageName} in this machine's apt sources; enable Debian's own sources and try again`,
    );
  });
}

/** Fetches what the machine's apt sources offer today into private lists. */
export async function fetchLists(context: SetupContext): Promise<void> {
  const directory = privateDirectory(context);
  await rm(directory, { recursive: true, force: true });
  await mkdir(join(directory, 'lists/partial'), { recursive: true });
  await mkdir(join(directory, 'cache/archives/partial'), { recursive: true });
  context.progress('fetching package lists');
  await context.run('apt-get', [...privateOptions(context), 'update'], { timeoutMs: 300_000 });
}

function privateDirectory(context: SetupContext): string {
  return join(context.paths.state, 'apt');
}

function privateOptions(context: SetupContext): readonly string[] {
  const directory = privateDirectory(context);
  return [`-oDir::State::lists=${directory}/lists`, `-oDir::Cache=${directory}/cache`];
}

/** `apt-cache show` succeeds only for a package that some list offers. */
async function isKnown(context: SetupContext, options: readonly string[], packageName: string): Promise<boolean> {
  return context.run('apt-cache', [...options, 'show', '--no-all-versions', packageName]).then(
    (text) => text.includes('Filename:'),
    () => false,
  );
}
