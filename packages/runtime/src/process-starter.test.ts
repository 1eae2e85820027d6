import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createRealClock } from '@agentenv/core/testing';
import { afterEach, describe, expect, onTestFinished, test } from 'vitest';
import { createProcessStarter, type ProcessStarter } from './process-starter.ts';
import { isRunning, killProcess, processStartTime, waitUntilGone } from './processes.ts';

const DEADLINE_MS = 20_000;
const clock = createRealClock();

/** Parent of a process, from its status. */
const SHOW_PARENT = ['sh', '-c', 'echo $PPID'] as const;

describe('a process that starts programs', () => {
  const starters: ProcessStarter[] = [];
  afterEach(async () => {
    await Promise.all(starters.splice(0).map((starter) => starter[Symbol.asyncDispose]()));
  });

  function open(): ProcessStarter {
    const starter = createProcessStarter();
    starters.push(starter);
    return starter;
  }

  async function pidOf(starter: ProcessStarter): Promise<number> {
    const { stdout } = await starter.command({ argv: SHOW_PARENT, stdin: '' }).ended;
    return Number(stdout);
  }

  test('is not the server, and the same one for all of them', async () => {
    const starter = open();
    const [first, second] = await Promise.all([pidOf(starter), pidOf(starter)]);
    expect(first).toBe(second);
    expect(first).not.toBe(process.pid);
  });

  test('starts programs with the environment they are given and no other', async () => {
    const program = await open().program(['/bin/sh', '-c', '/usr/bin/env >&2'], { KEY: 'value' });
    const { words } = await program.ended;
    // The shell's own.
    const given = words.split('\n').filter((line) => !/^(PWD|SHLVL|_|OLDPWD)=/.test(line));
    expect(given).toEqual(['KEY=value']);
  });

  test('starts programs that outlive it', async () => {
    const starter = open();
    const program = await starter.program(['/bin/sleep', '600'], {});
    onTestFinished(() => killProcess(program));
    expect(await processStartTime(program.pid)).toBe(program.startTime);
    await starter[Symbol.asyncDispose]();
    await expect(program.ended).rejects.toMatchObject({ code: 'unavailable' });
    expect(await isRunning(program)).toBe(true);
  });

  test('tells how a program ended and its last words', async () => {
    const starter = open();
    const failed = await starter.program(['/bin/sh', '-c', 'echo the reason >&2; exit 7'], {});
    expect(await failed.ended).toMatchObject({ how: 'exit status 7', words: 'the reason' });
    const killed = await starter.program(['/bin/sh', '-c', 'exec sleep 600'], {});
    await killProcess(killed);
    expect(await killed.ended).toMatchObject({ how: 'signal SIGKILL' });
    await waitUntilGone(killed, clock, DEADLINE_MS);
  });

  test('says why a program cannot be started', async () => {
    await expect(open().program(['/no/such/program'], {})).rejects.toMatchObject({
      code: 'create_failed',
      message: expect.stringContaining('/no/such/program could not be started'),
    });
  });

  test('goes on when a program cannot even be tried', async () => {
    const starter = open();
    const pid = await pidOf(starter);
    const tooLong = 'x'.repeat(3_000_000);
    expect(await starter.command({ argv: ['true', tooLong], stdin: '' }).ended).toMatchObject({
      failure: expect.stringContaining('could not be started'),
    });
    await expect(starter.program(['/bin/true', tooLong], {})).rejects.toMatchObject({ code: 'create_failed' });
    expect(await pidOf(starter)).toBe(pid);
  });

  test('that is disposed ends the commands under way, with everything they started', async () => {
    const starter = open();
    const directory = await mkdtemp(join(tmpdir(), 'aenv-starter-'));
    onTestFinished(() => rm(directory, { recursive: true }));
    const file = join(directory, 'pid');
    const command = starter.command({ argv: ['sh', '-c', `sleep 600 & echo $! > ${file}; wait`], stdin: '' });
    command.ended.catch(() => undefined);
    const readPid = async () => Number(await readFile(file, 'utf8').catch(() => ''));
    await expect.poll(readPid, { timeout: DEADLINE_MS }).toBeGreaterThan(1);
    const pid = await readPid();
    const startTime = await processStartTime(pid);
    if (startTime === undefined) throw new Error('the command does not run');
    await starter[Symbol.asyncDispose]();
    await expect(command.ended).rejects.toMatchObject({ code: 'unavailable' });
    await waitUntilGone({ pid, startTime }, clock, DEADLINE_MS);
  });

  test('that dies fails what is under way, and another one takes its place', async () => {
    const starter = open();
    const pid = await pidOf(starter);
    const command = starter.command({ argv: ['sleep', '600'], stdin: '' });
    const program = await starter.program(['/bin/sleep', '600'], {});
    onTestFinished(() => killProcess(program));
    process.kill(pid, 'SIGKILL');
    await expect(command.ended).rejects.toMatchObject({ code: 'internal' });
    await expect(program.ended).rejects.toMatchObject({ code: 'internal' });
    expect(await isRunning(program)).toBe(true);
    expect(await pidOf(starter)).not.toBe(pid);
  });

  test('ends with a server that is killed', async () => {
    const script = `
      import { createProcessStarter } from './process-starter.ts';
      const starter = createProcessStarter();
      const { stdout } = await starter.command({ argv: ['sh', '-c', 'echo $PPID'], stdin: '' }).ended;
      console.log(stdout.trim());
      setInterval(() => undefined, 1_000);
    `;
    const server = spawn(process.execPath, ['--input-type=module-typescript', '-e', script], {
      ...{ cwd: import.meta.dirname, stdio: ['ignore', 'pipe', 'inherit'] },
    });
    onTestFinished(() => void server.kill('SIGKILL'));
    const [line] = await once(server.stdout.setEncoding('utf8'), 'data');
    const pid = Number(line);
    const startTime = await processStartTime(pid);
    if (startTime === undefined) throw new Error('the starter does not run');
    server.kill('SIGKILL');
    await waitUntilGone({ pid, startTime }, clock, DEADLINE_MS);
  });

  test('is not ended by signals that are meant for the server', async () => {
    const starter = open();
    const pid = await pidOf(starter);
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.kill(pid, signal);
    expect(await pidOf(starter)).toBe(pid);
  });
});
