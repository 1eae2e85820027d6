import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { SetupContext } from '../step.ts';

/**
 * Options with which apt knows `packageName`: none when the machine's own package lists do, else options for private
 * lists, which are fetched here. Needs no root and leaves the machine's lists alone.
 */
export async function aptOptions(context: SetupContext, packageName: string): Promise<readonly string[]> {
  if (await isKnown(context, [], packageName)) return [];
  const directory = join(context.paths.state, 'apt');
  const options = [`-oDir::State::lists=${directory}/lists`, `-oDir::Cache=${directory}/cache`];
  await mkdir(join(directory, 'lists/partial'), { recursive: true });
  await mkdir(join(directory, 'cache/archives/partial'), { recursive: true });
  if (await isKnown(context, options, packageName)) return options;
  context.progress('fetching package lists');
  await context.run('apt-get', [...options, 'update'], { timeoutMs: 300_000 });
  if (await isKnown(context, options, packageName)) return options;
  throw new Error(`no package ${packageName} in this machine's apt sources; enable Debian's own sources and try again`);
}

/** `apt-cache show` succeeds only for a package that some list offers. */
async function isKnown(context: SetupContext, options: readonly string[], packageName: string): Promise<boolean> {
  return context.run('apt-cache', [...options, 'show', '--no-all-versions', packageName]).then(
    (text) => text.includes('Filename:'),
    () => false,
  );
}
