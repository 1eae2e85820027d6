import { chmod, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { repositoryPaths } from '../lib/paths.ts';
import { findProgram, missingPackages, parsePackages } from './packages.ts';

const { root } = repositoryPaths();
let directory: string;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'aenv-packages-'));
});

afterEach(async () => {
  await rm(directory, { recursive: true });
});

describe('Debian packages', () => {
  it('are read from lines of name, file and reason', () => {
    expect(parsePackages('# comment\n\nlibx1  libx.so.1   needed by y\nz+ /usr/z  for z\nbroken line\n')).toEqual([
      { name: 'libx1', provides: 'libx.so.1', why: 'needed by y' },
      { name: 'z+', provides: '/usr/z', why: 'for z' },
    ]);
  });

  it('are each explained in docs/dependencies.md, and no others are', async () => {
    const packages = parsePackages(await readFile(join(root, 'scripts/setup/packages.txt'), 'utf8'));
    const document = await readFile(join(root, 'docs/dependencies.md'), 'utf8');
    const section = /^## Debian packages$([\s\S]*?)(?=^## |(?![\s\S]))/m.exec(document)?.[1] ?? '';
    const listed = [...section.matchAll(/^\| `([^`]+)` \|/gm)].map(([, name]) => name);
    expect(listed.toSorted()).toEqual(packages.map(({ name }) => name).toSorted());
  });

  it('count as there by a program in the PATH, a library of the system, or a path', async () => {
    await writeFile(join(directory, 'tool'), '');
    await chmod(join(directory, 'tool'), 0o755);
    const packages = [
      { name: 'a', provides: 'tool', why: '' },
      { name: 'b', provides: join(directory, 'tool'), why: '' },
      { name: 'c', provides: 'libc.so.6', why: '' },
      { name: 'd', provides: 'no-such-program-anywhere', why: '' },
      { name: 'e', provides: 'libnonsense.so.99', why: '' },
      { name: 'f', provides: join(directory, 'absent'), why: '' },
    ];
    const missing = await missingPackages(packages, directory);
    expect(missing.map(({ name }) => name)).toEqual(['d', 'e', 'f']);
  });

  it('does not take a file that cannot be run for a program, nor a relative PATH entry', async () => {
    await writeFile(join(directory, 'data'), '');
    await chmod(join(directory, 'data'), 0o644);
    expect(await findProgram('data', directory)).toBeUndefined();
    expect(await findProgram('tool', '.')).toBeUndefined();
  });
});
