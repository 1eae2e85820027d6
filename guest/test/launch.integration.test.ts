import { execFile } from 'node:child_process';
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const run = promisify(execFile);
const UID = '64123';

interface Outcome {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

describe('aenv-launch', () => {
  let directory: string;
  let launcher: string;
  let namespace: string;

  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'aenv-launch-'));
    await chmod(directory, 0o755);
    launcher = join(directory, 'aenv-launch');
    await run('make', ['-s', '-C', join(import.meta.dirname, '..'), `OUT=${directory}`, launcher]);
    namespace = `aenv-launch-${process.pid}`;
    await run('ip', ['netns', 'add', namespace]);
    await run('ip', ['-n', namespace, 'tuntap', 'add', 'tap0', 'mode', 'tap']);
  });
  afterAll(async () => {
    if (namespace !== undefined) await run('ip', ['netns', 'del', namespace]);
    await rm(directory, { recursive: true, force: true });
  });

  async function launch(...args: readonly string[]): Promise<Outcome> {
    try {
      const { stdout, stderr } = await run(launcher, [...args], { timeout: 10_000 });
      return { code: 0, stdout, stderr };
    } catch (caught) {
      if (caught instanceof Error && 'code' in caught && 'stdout' in caught && 'stderr' in caught) {
        return { code: Number(caught.code), stdout: String(caught.stdout), stderr: String(caught.stderr) };
      }
      throw caught;
    }
  }

  const asUser = ['--uid', UID, '--gid', UID];

  async function statusOf(...args: readonly string[]): Promise<ReadonlyMap<string, string>> {
    const { stdout } = await launch(...args, '--', 'cat', '/proc/self/status');
    return new Map(stdout.split('\n').map((line) => [line.split(':')[0] ?? '', line.split(':')[1]?.trim() ?? '']));
  }

  test('gives up every privilege', async () => {
    const status = await statusOf(...asUser);
    expect(status.get('Uid')?.split('\t')).toEqual([UID, UID, UID, UID]);
    expect(status.get('Gid')?.split('\t')).toEqual([UID, UID, UID, UID]);
    expect(status.get('Groups')).toBe('');
    expect(status.get('NoNewPrivs')).toBe('1');
    for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapAmb']) expect(status.get(set)).toBe('0000000000000000');
  });

  test('keeps the one supplementary group it is told', async () => {
    expect((await statusOf(...asUser, '--group', '64999')).get('Groups')).toBe('64999');
  });

  test('leads a session of its own, with limits, priority and a private umask', async () => {
    const script = 'ps -o pid=,sid= -p $$; ulimit -n; ulimit -c; nice; cat /proc/self/oom_score_adj; umask';
    const { stdout } = await launch(
      ...asUser,
      '--nofile',
      '77',
      '--nice',
      '5',
      '--oom',
      '300',
      '--',
      'sh',
      '-c',
      script,
    );
    const [session = '', ...rest] = stdout.trim().split('\n');
    const [pid, sid] = session.trim().split(/\s+/);
    expect(sid).toBe(pid);
    expect(rest).toEqual(['77', '0', '5', '300', '0077']);
  });

  test('hands over exactly the descriptors it is told and closes the others', async () => {
    const script = 'ls /proc/self/fd | sort -n | tr "\\n" " "';
    const { stdout } = await launch(...asUser, '--dir', '9=/', '--file', '5=/dev/null', '--', 'sh', '-c', script);
    // 3 is the listing itself.
    expect(stdout.trim().split(' ')).toEqual(['0', '1', '2', '3', '5', '9']);
  });

  test('a file behind a closed directory is reached by its descriptor only', async () => {
    const closed = join(directory, 'closed');
    await mkdir(join(closed, 'open'), { recursive: true });
    await writeFile(join(closed, 'open', 'file'), 'contents', { mode: 0o644 });
    await chmod(closed, 0o700);
    const byName = await launch(...asUser, '--', 'cat', join(closed, 'open', 'file'));
    expect(byName.code).not.toBe(0);
    const directoryArgs = [...asUser, '--dir', `7=${join(closed, 'open')}`];
    expect((await launch(...directoryArgs, '--', 'cat', '/proc/self/fd/7/file')).stdout).toBe('contents');
    const fileArgs = [...asUser, '--file', `7=${join(closed, 'open', 'file')}`];
    expect((await launch(...fileArgs, '--', 'cat', '/proc/self/fd/7')).stdout).toBe('contents');
  });

  test('enters the namespace and attaches its tap without the engine touching the device node', async () => {
    const args = [...asUser, '--netns', `/run/netns/${namespace}`, '--tap', '3=tap0'];
    const { stdout } = await launch(
      ...args,
      '--',
      'sh',
      '-c',
      'readlink /proc/self/fd/3; grep ^iff /proc/self/fdinfo/3; ls /sys/class/net',
    );
    expect(stdout).toContain('/dev/net/tun\niff:\ttap0\n');
    const inside = await launch(...args, '--', 'cat', '/proc/net/dev');
    expect(inside.stdout).toContain('tap0:');
  });

  test.each<[string, readonly string[], number, RegExp]>([
    ['an unknown option', ['--colour', 'red', '--', 'true'], 125, /^aenv-launch: unknown option: --colour\n$/],
    ['a number out of range', ['--uid', '0', '--', 'true'], 125, /^aenv-launch: bad number for: --uid\n$/],
    ['no program', ['--nofile', '64'], 125, /^aenv-launch: missing: -- PROGRAM\n$/],
    [
      'a namespace that is gone',
      ['--netns', '/run/netns/none', '--', 'true'],
      125,
      /open \/run\/netns\/none: No such file/,
    ],
    ['a group that is gone', ['--cgroup', '/nowhere', '--', 'true'], 125, /open \/nowhere\/cgroup.procs: No such file/],
    ['a tap that does not fit', ['--tap', '3=a-name-that-is-too-long', '--', 'true'], 125, /tap name too long/],
    ['a descriptor that is not free', ['--file', '2=/dev/null', '--', 'true'], 125, /bad number for: --file/],
    [
      'a program that is missing',
      ['--', '/nowhere/engine'],
      126,
      /^aenv-launch: exec \/nowhere\/engine: No such file or directory\n$/,
    ],
  ])('%s is one line on stderr and a status of its own', async (_what, args, code, message) => {
    const outcome = await launch(...args);
    expect(outcome.code).toBe(code);
    expect(outcome.stderr).toMatch(message);
  });
});
