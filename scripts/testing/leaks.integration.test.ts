import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { run } from '../lib/command.ts';
import { leaksBetween, snapshotHost } from './leaks.ts';

const cleanups: (() => Promise<unknown>)[] = [];
const command = (program: string, ...args: string[]) => run(program, args, { timeoutMs: 10_000 });
const unique = `aenv-leak-${process.pid}`;

afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

/** Leaks of this test only: others may use the host at the same time. */
async function leaksOfMine(before: Awaited<ReturnType<typeof snapshotHost>>): Promise<readonly string[]> {
  return leaksBetween(before, await snapshotHost()).filter((leak) => leak.includes(unique));
}

describe('the leak check', () => {
  it('names a directory, a mount, a socket, a namespace, a table and a process that are left behind', async () => {
    const before = await snapshotHost();
    const directory = await mkdtemp(join(tmpdir(), `${unique}-`));
    cleanups.push(() => rm(directory, { recursive: true }));
    const socket = join(directory, 'socket');
    const server = createServer().listen(socket);
    await once(server, 'listening');
    cleanups.push(async () => once(server.close(), 'close'));
    const mount = join(directory, 'mount');
    await command('mkdir', mount);
    await command('mount', '-t', 'tmpfs', 'tmpfs', mount);
    cleanups.push(() => command('umount', mount));
    await command('ip', 'netns', 'add', unique);
    cleanups.push(() => command('ip', 'netns', 'delete', unique));
    await command('nft', `add table inet ${unique.replaceAll('-', '_')}`);
    cleanups.push(() => command('nft', `delete table inet ${unique.replaceAll('-', '_')}`));
    const child = spawn('sleep', ['60'], { argv0: `qemu-system-${unique}`, stdio: 'ignore' });
    cleanups.push(async () => {
      child.kill('SIGKILL');
      await once(child, 'exit');
    });
    await once(child, 'spawn');

    const leaks = await leaksOfMine(before);
    expect(new Set(leaks.map((leak) => leak.split(': ')[0]))).toEqual(
      new Set(['file', 'mount', 'network namespace', 'process', 'socket']),
    );
    const tables = leaksBetween(before, await snapshotHost()).filter((leak) => leak.startsWith('nft table'));
    expect(tables.join()).toContain(unique.replaceAll('-', '_'));
  });

  it('names a common device whose mode or type changed', async () => {
    const before = await snapshotHost();
    expect([...before.device].find((line) => line.startsWith('/dev/null '))).toMatch(/ 20666 0:0 259$/);
    const changed = { ...before, device: new Set([...before.device].map((line) => line.replace('20666', '20644'))) };
    expect(leaksBetween(before, changed)).toContain('device: /dev/null 20644 0:0 259');
  });

  it('is content when everything was cleaned up', async () => {
    const before = await snapshotHost();
    await command('ip', 'netns', 'add', unique);
    await command('ip', 'netns', 'delete', unique);
    expect(await leaksOfMine(before)).toEqual([]);
  });
});
