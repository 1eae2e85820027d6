import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { readBuild } from './build.ts';

const COMMIT = '0123456789abcdef0123456789abcdef01234567';

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'aenv-build-'));
  await mkdir(join(directory, '.git/refs/heads'), { recursive: true });
  await writeFile(join(directory, 'package.json'), '{"version":"1.2.3"}');
});
afterEach(() => rm(directory, { recursive: true, force: true }));

it.each([
  ['a branch', { HEAD: 'ref: refs/heads/main\n', 'refs/heads/main': `${COMMIT}\n` }, COMMIT],
  ['a packed branch', { HEAD: 'ref: refs/heads/main\n', 'packed-refs': `# pack\n${COMMIT} refs/heads/main\n` }, COMMIT],
  ['a commit', { HEAD: `${COMMIT}\n` }, COMMIT],
  ['a branch without a commit', { HEAD: 'ref: refs/heads/main\n' }, ''],
  ['nonsense', { HEAD: 'ref: ../../etc/passwd\n' }, ''],
  ['nothing', {}, ''],
])('the build of a checkout of %s', async (_what, files, commit) => {
  for (const [name, text] of Object.entries(files)) await writeFile(join(directory, '.git', name), text);
  expect(await readBuild(directory)).toEqual({ version: '1.2.3', commit });
});

it('the build of no checkout at all', async () => {
  expect(await readBuild(join(directory, 'elsewhere'))).toEqual({ version: '', commit: '' });
});
