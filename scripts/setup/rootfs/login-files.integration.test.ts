import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { run } from '../../lib/command.ts';
import { ETC_BASHRC, ETC_PROFILE, HOME_BASHRC, HOME_PROFILE } from './login-files.ts';

/** A uid without other processes, so that a limit of one process makes every fork of its shell fail. */
const LONELY_UID = '64987';
let home: string;

beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), 'aenv-login-'));
  await writeFile(join(home, '.profile'), HOME_PROFILE);
  await writeFile(join(home, '.bashrc'), HOME_BASHRC);
  await writeFile(join(home, 'profile'), ETC_PROFILE);
  await writeFile(join(home, 'bash.bashrc'), ETC_BASHRC);
  await mkdir(join(home, '.local/bin'), { recursive: true });
  await run('chmod', ['-R', 'go+rX', home], { timeoutMs: 10_000 });
});

afterEach(async () => {
  await rm(home, { recursive: true });
});

/** Runs a script in bash as a user who cannot start any process; bash complains on standard error when it tries. */
async function inLonelyShell(options: readonly string[], script: string, env: NodeJS.ProcessEnv = {}): Promise<string> {
  const shell = ['bash', '--noprofile', '--norc', ...options, '-c', script];
  let output = '';
  await run('setpriv', ['--reuid', LONELY_UID, '--clear-groups', 'prlimit', '--nproc=1', ...shell], {
    timeoutMs: 3_000,
    env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', HOME: home, ...env },
    onOutput: (text) => {
      output += text;
    },
  });
  return output;
}

describe('login files of the base image', () => {
  it('would be caught starting a process', async () => {
    await expect(inLonelyShell([], 'x=$(true); echo "$x"')).rejects.toThrow(/fork/);
  });

  it('start none in a login shell', async () => {
    const script = `. ${home}/profile; . ${home}/.profile; umask; echo "$LANG $PATH"`;
    const path = `${home}/.local/bin:/usr/sbin:/usr/bin:/sbin:/bin`;
    expect(await inLonelyShell([], script)).toBe(`0022\nC.UTF-8 ${path}\n`);
  });

  it('start none in an interactive login shell, and set a prompt', async () => {
    const script = `. ${home}/profile; . ${home}/.profile; . ${home}/bash.bashrc; echo "\${PS1:+prompt}"; alias ll`;
    const output = await inLonelyShell(['-i'], script);
    const complaints = /^bash: (cannot set terminal process group|no job control).*\n/gm;
    expect(output.replace(complaints, '')).toBe("prompt\nalias ll='ls -l'\n");
  });

  it('leave a PATH and a language alone that the caller gave', async () => {
    const env = { PATH: '/opt/tool/bin:/usr/bin:/bin', LANG: 'de_DE.UTF-8' };
    const script = `. ${home}/profile; echo "$LANG $PATH"`;
    expect(await inLonelyShell([], script, { ...env, PATH: `/usr/sbin:${env.PATH}` })).toBe(
      'de_DE.UTF-8 /usr/sbin:/opt/tool/bin:/usr/bin:/bin\n',
    );
  });
});
