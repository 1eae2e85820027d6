import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Clock, SILENT_LOG } from '@agentenv/core';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { findProcesses, isRunning, killProcess, processStartTime, waitUntilGone } from '../processes.ts';
import { createEngineCgroups } from './cgroups.ts';

/** Real time, as processes have no other. */
const clock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  timer(milliseconds, callback) {
    const timer = setTimeout(callback, milliseconds);
    return { [Symbol.dispose]: () => clearTimeout(timer) };
  },
};

describe('process identity', () => {
  let child: ChildProcess;
  beforeEach(async () => {
    child = spawn('sleep', ['600'], { argv0: `guest=aenv-test-${process.pid}` });
    await once(child, 'spawn');
  });
  afterEach(() => {
    child.kill('SIGKILL');
  });

  async function identityOf({ pid = 0 }: ChildProcess) {
    return { pid, startTime: (await processStartTime(pid)) ?? 0 };
  }

  test('finds a process by one of its arguments', async () => {
    const argument = `guest=aenv-test-${process.pid}`;
    const found = await findProcesses((candidate) => candidate === argument);
    expect(found).toEqual([{ ...(await identityOf(child)), argument }]);
  });

  test('a process with another start time is another process: it is never killed', async () => {
    const identity = await identityOf(child);
    const former = { ...identity, startTime: identity.startTime - 1 };
    expect(await isRunning(former)).toBe(false);
    await killProcess(former);
    await waitUntilGone(former, clock, 1_000);
    expect(await isRunning(identity)).toBe(true);
  });

  test('kills the process itself and sees it gone', async () => {
    const identity = await identityOf(child);
    await killProcess(identity);
    await waitUntilGone(identity, clock, 5_000);
    expect(await processStartTime(identity.pid)).toBeUndefined();
    await killProcess(identity);
  });

  test('waiting for one that stays ends at the deadline', async () => {
    await expect(waitUntilGone(await identityOf(child), clock, 20)).rejects.toMatchObject({
      code: 'deadline_exceeded',
    });
  });
});

describe('control groups of engines', () => {
  let root: string;
  beforeEach(async () => {
    root = await mkdtemp(join(tmpdir(), 'aenv-cgroup-'));
  });
  afterEach(() => rm(root, { recursive: true, force: true }));

  const open = () => createEngineCgroups({ root, clock, log: SILENT_LOG });
  const text = (...path: string[]) => readFile(join(root, ...path), 'utf8');

  test('version 1: a group in each hierarchy, all together weighing less than one ordinary group', async () => {
    for (const [name, file] of [
      ['cpu,cpuacct', 'cpu.shares'],
      ['memory', 'memory.limit_in_bytes'],
    ] as const) {
      await mkdir(join(root, name));
      await writeFile(join(root, name, file), '');
    }
    const cgroups = await open();
    expect(cgroups.limitation).toBeUndefined();
    expect(await cgroups.create('aenv-1', 1 << 30)).toEqual([
      join(root, 'cpu,cpuacct', 'aenv', 'aenv-1'),
      join(root, 'memory', 'aenv', 'aenv-1'),
    ]);
    expect(Number(await text('cpu,cpuacct', 'aenv', 'cpu.shares'))).toBeLessThan(1024);
    expect(await text('memory', 'aenv', 'aenv-1', 'memory.limit_in_bytes')).toBe(String(1 << 30));
  });

  test('version 2: one group with both', async () => {
    await writeFile(join(root, 'cgroup.controllers'), 'cpu memory');
    const cgroups = await open();
    expect(await cgroups.create('aenv-1', 4096)).toEqual([join(root, 'aenv', 'aenv-1')]);
    expect(Number(await text('aenv', 'cpu.weight'))).toBeLessThan(100);
    expect(await text('aenv', 'aenv-1', 'memory.max')).toBe('4096');
  });

  test('none: engines run without, and the limitation is told', async () => {
    const cgroups = await open();
    expect(cgroups.limitation).toContain('control groups cannot be created');
    expect(await cgroups.create('aenv-1', 4096)).toEqual([]);
    await cgroups.remove('aenv-1');
    expect(await cgroups.list('aenv-')).toEqual([]);
  });

  test('lists its groups by prefix and removes them, a second time as well', async () => {
    await writeFile(join(root, 'cgroup.controllers'), '');
    const cgroups = await open();
    for (const name of ['aenv-a-1', 'aenv-a-2', 'aenv-b-1']) await mkdir(join(root, 'aenv', name));
    expect((await cgroups.list('aenv-a-')).toSorted()).toEqual(['aenv-a-1', 'aenv-a-2']);
    await cgroups.remove('aenv-a-1');
    await cgroups.remove('aenv-a-1');
    expect(await cgroups.list('aenv-a-')).toEqual(['aenv-a-2']);
    await cgroups.removeParents();
    expect((await stat(join(root, 'aenv', 'aenv-b-1'))).isDirectory()).toBe(true);
  });
});
