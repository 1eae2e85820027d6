import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { isDeepStrictEqual, promisify } from 'node:util';
import type { Resources } from '@agentenv/core';

/** Of all test hosts of this checkout: a capture takes seconds under emulation and depends on no home. */
const KEPT = join(import.meta.dirname, '..', '..', '..', '..', '.aenv', 'test-captures');
/** A capture belongs to the measured rate of the time stamp counter, which is a file of the home itself. */
const RATE = 'tsc.json';

/**
 * Puts what makes the captures of former test hosts its own into the home of a QEMU backend that was not used yet, and the
 * templates with these resources.
 */
export async function seedCaptures(home: string, resources?: Resources): Promise<void> {
  await copyMissing(KEPT, home, resources);
}

/** Keeps the templates of this home with these resources for the next test host; they must be as they were captured. */
export async function keepCaptures(home: string, resources: Resources): Promise<void> {
  await copyMissing(home, KEPT, resources);
}

async function hasResources(template: string, resources: Resources | undefined): Promise<boolean> {
  if (resources === undefined) return false;
  const manifest: { readonly resources?: unknown } = JSON.parse(
    await readFile(join(template, 'manifest.json'), 'utf8'),
  );
  return isDeepStrictEqual(manifest.resources, resources);
}

/** Copies what is not there yet, each piece complete or not at all; sparse files stay sparse. */
async function copyMissing(source: string, destination: string, resources?: Resources): Promise<void> {
  for (const kind of ['.', 'templates', 'disks']) {
    const names = await readdir(join(source, kind)).catch(() => []);
    await mkdir(join(destination, kind), { recursive: true });
    for (const name of names.filter((entry) => (kind === '.' ? entry === RATE : !entry.startsWith('.')))) {
      const target = join(destination, kind, name);
      if (existsSync(target) || (kind === 'templates' && !(await hasResources(join(source, kind, name), resources))))
        continue;
      const partial = join(destination, kind, `.copy-${randomBytes(4).toString('hex')}`);
      try {
        await promisify(execFile)('cp', ['-a', '--sparse=always', join(source, kind, name), partial]);
        await rename(partial, target);
      } catch (error) {
        // Somebody else brought the same one meanwhile.
        if (!existsSync(target)) throw error;
      } finally {
        await rm(partial, { recursive: true, force: true });
      }
    }
  }
}
