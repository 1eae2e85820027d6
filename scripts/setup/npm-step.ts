import { join } from 'node:path';
import { readTextIfPresent } from '../lib/files.ts';
import type { SetupStep } from './step.ts';

/** The part of npm's lockfiles this step compares. */
export interface Lockfile {
  readonly packages: Readonly<Record<string, LockedPackage>>;
}

interface LockedPackage {
  readonly version?: string;
  readonly integrity?: string;
  readonly link?: boolean;
  readonly optional?: boolean;
}

/** JavaScript dependencies, exactly as locked. */
export function npmStep(): SetupStep {
  return {
    name: 'npm',
    title: 'npm packages',
    present: async ({ paths }) => {
      const wanted = await readTextIfPresent(join(paths.root, 'package-lock.json'));
      const installed = await readTextIfPresent(join(paths.root, 'node_modules/.package-lock.json'));
      if (wanted === undefined || installed === undefined) return false;
      return isInstalled(JSON.parse(wanted), JSON.parse(installed));
    },
    run: async (context) => {
      const npm = join(context.paths.toolchain, 'node_modules/npm/bin/npm-cli.js');
      await context.run(process.execPath, [npm, 'ci', '--ignore-scripts', '--no-audit', '--no-fund'], {
        cwd: context.paths.root,
        timeoutMs: 900_000,
      });
      return { files: {}, facts: {} };
    },
  };
}

/**
 * True when `node_modules` holds what the lockfile names: npm writes its own lockfile there when an installation is
 * complete, and `npm ci` begins by removing the directory. Optional packages may be absent (other platforms).
 */
export function isInstalled(wanted: Lockfile, installed: Lockfile): boolean {
  return Object.entries(wanted.packages).every(([path, entry]) => {
    if (path === '') return true;
    const found = installed.packages[path];
    if (found === undefined) return entry.optional === true;
    return found.version === entry.version && found.link === entry.link && found.integrity === entry.integrity;
  });
}
