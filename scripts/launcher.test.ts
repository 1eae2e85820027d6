import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { repositoryPaths } from './lib/paths.ts';

const { root } = repositoryPaths();
const SHELL_TOOLS = [
  'cat',
  'cksum',
  'date',
  'dirname',
  'flock',
  'id',
  'mkdir',
  'readlink',
  'rm',
  'sh',
  'uname',
  'wc',
  'touch',
];
let directory: string;

/** A copy of what the launcher reads, and a PATH with nothing but the shell's usual tools. */
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'aenv-launcher-'));
  await cp(join(root, 'aenv'), join(directory, 'aenv'));
  await mkdir(join(directory, 'bin'));
  await mkdir(join(directory, 'scripts/setup'), { recursive: true });
  await cp(join(root, 'scripts/toolchain'), join(directory, 'scripts/toolchain'), { recursive: true });
  for (const tool of SHELL_TOOLS) await symlink(`/usr/bin/${tool}`, join(directory, 'bin', tool));
});

afterEach(async () => {
  await rm(directory, { recursive: true });
});

function launch(file: string, args: readonly string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  return new Promise((resolve) => {
    execFile(file, args, { env: { PATH: join(directory, 'bin') }, timeout: 20_000 }, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : Number(error.code), stdout, stderr });
    });
  });
}

describe('./aenv', () => {
  it.each(['--help', '-h', 'help'])('explains itself before anything is installed: %s', async (argument) => {
    const { code, stdout } = await launch(join(directory, 'aenv'), [argument]);
    expect(code).toBe(0);
    for (const command of ['setup', 'server', 'demo', 'test', 'bench', 'doctor'])
      expect(stdout).toContain(`  ${command} `);
  });

  it.each(['setup', 'server', 'demo', 'test', 'bench', 'doctor'])('explains %s', async (command) => {
    const { code, stdout } = await launch(join(directory, 'aenv'), [command, '--help']);
    expect([code, stdout.split('\n')[0]]).toEqual([0, expect.stringContaining(`Usage: ./aenv ${command}`)]);
  });

  it('refuses an unknown command and no command with its usage', async () => {
    expect(await launch(join(directory, 'aenv'), ['dance'])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('unknown command dance'),
    });
    expect(await launch(join(directory, 'aenv'), [])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('Usage'),
    });
  });

  it('works through a symbolic link from elsewhere', async () => {
    await symlink('../aenv', join(directory, 'bin/aenv-link'));
    expect(await launch(join(directory, 'bin/aenv-link'), ['server'])).toMatchObject({
      code: 1,
      stderr: 'aenv: not set up: run ./aenv setup\n',
    });
  });

  it('names exactly what is missing where there is no apt-get, and installs nothing', async () => {
    await writeFile(
      join(directory, 'scripts/setup/packages.txt'),
      '# comment\nshell  sh  is there\nlibc6  libc.so.6  is there\nodd-tool  odd-tool-of-nobody  does odd things\nlibodd  libodd.so.1  helps it\n',
    );
    const { code, stderr } = await launch(join(directory, 'aenv'), ['setup']);
    expect(code).toBe(1);
    expect(stderr.trim().split('\n').slice(1)).toEqual([
      '  odd-tool (odd-tool-of-nobody): does odd things',
      '  libodd (libodd.so.1): helps it',
    ]);
  });

  it('says which package brings npm when it is the only thing missing', async () => {
    await writeFile(join(directory, 'scripts/setup/packages.txt'), '');
    expect(await launch(join(directory, 'aenv'), ['demo'])).toMatchObject({
      code: 1,
      stderr: 'aenv: npm is missing: apt-get install -y npm git\n',
    });
  });
});
