import { constants } from 'node:fs';
import { access, readdir } from 'node:fs/promises';
import { join } from 'node:path';

/** A Debian package set-up or the server needs. */
export interface HostPackage {
  readonly name: string;
  /** How it is recognised: a program, a shared library's file name, or an absolute path. */
  readonly provides: string;
  readonly why: string;
}

/** Reads `packages.txt`: name, recognisable file and reason, separated by blanks; `#` starts a comment line. */
export function parsePackages(text: string): readonly HostPackage[] {
  return [...text.matchAll(/^([a-z0-9][a-z0-9.+-]*)[ \t]+(\S+)[ \t]+(.+)$/gm)].map(
    ([, name = '', provides = '', why = '']) => ({
      name,
      provides,
      why,
    }),
  );
}

const SYSTEM_DIRECTORIES = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin', '/sbin', '/bin'];

/** Absolute path of a program in `path` or the system's directories, or undefined. */
export async function findProgram(program: string, path: string | undefined): Promise<string | undefined> {
  const own = (path ?? '').split(':').filter((directory) => directory.startsWith('/'));
  return firstPresent(program, [...own, ...SYSTEM_DIRECTORIES], constants.X_OK);
}

/** The packages whose file is not there. */
export async function missingPackages(
  packages: readonly HostPackage[],
  path: string | undefined,
): Promise<readonly HostPackage[]> {
  const found = await Promise.all(packages.map(({ provides }) => isProvided(provides, path)));
  return packages.filter((_, index) => found[index] !== true);
}

async function isProvided(provides: string, path: string | undefined): Promise<boolean> {
  if (provides.startsWith('/')) return present(provides, constants.R_OK);
  if (!provides.includes('.so.')) return (await findProgram(provides, path)) !== undefined;
  const triplets = await readdir('/usr/lib');
  const directories = ['/usr/lib', '/usr/lib64', ...triplets.map((name) => join('/usr/lib', name))];
  return (await firstPresent(provides, directories, constants.R_OK)) !== undefined;
}

async function firstPresent(name: string, directories: readonly string[], mode: number): Promise<string | undefined> {
  for (const directory of directories) {
    if (await present(join(directory, name), mode)) return join(directory, name);
  }
  return undefined;
}

async function present(path: string, mode: number): Promise<boolean> {
  return access(path, mode).then(
    () => true,
    () => false,
  );
}
