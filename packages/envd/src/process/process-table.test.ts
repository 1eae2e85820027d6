import type { Agent, SpawnRequest } from '@agentenv/agent';
import { PlatformError, type SandboxLogEntry, SILENT_LOG } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { ProcessConfigSchema, ProcessSelectorSchema } from '@agentenv/protocol/process';
import { create } from '@bufbuild/protobuf';
import { describe, expect, test } from 'vitest';
import { encodeDescription } from './description.ts';
import { createProcessTable, type SpawnPlan } from './process-table.ts';
import { createFakeGuestProcess, type FakeGuestProcess } from './testing/fake-guest-process.ts';

const PLAN: SpawnPlan = { user: 'user', argv: ['x'], env: {}, cwd: '', defaultCwd: '', stdin: true, killAfterMs: 0 };
const DESCRIPTION = { tag: 'a-tag', config: create(ProcessConfigSchema, { cmd: 'x', args: ['y'] }) };

function setUp(present: readonly FakeGuestProcess[] = []) {
  const clock = createFakeClock();
  const spawned: { readonly request: SpawnRequest; readonly guest: FakeGuestProcess }[] = [];
  const journal: SandboxLogEntry[] = [];
  let failing = false;
  // The two calls of the agent a table makes; nothing else of it is reachable from there.
  const agent: Pick<Agent, 'spawn' | 'listProcesses'> = {
    async spawn(request) {
      if (failing) throw new PlatformError('invalid_argument', 'no');
      const guest = createFakeGuestProcess({ pid: 100 + spawned.length, tag: request.tag, config: request.config });
      spawned.push({ request, guest });
      return guest;
    },
    listProcesses: async () => present,
  };
  const table = createProcessTable({ agent, clock, log: SILENT_LOG, journal: (entry) => journal.push(entry) });
  const start = async (description = DESCRIPTION) => (await table.start(PLAN, description)).record;
  const lastGuest = () => spawned.at(-1)?.guest ?? expect.fail('nothing was spawned');
  return { clock, table, spawned, journal, start, lastGuest, fail: () => (failing = true) };
}

const byPid = (pid: number) => create(ProcessSelectorSchema, { selector: { case: 'pid', value: pid } });
const byTag = (tag: string) => create(ProcessSelectorSchema, { selector: { case: 'tag', value: tag } });
const NOT_FOUND = expect.objectContaining({ code: 'not_found' });

describe('process table', () => {
  test('finds a process by pid and by tag while it runs', async () => {
    const { table, start } = setUp();
    const record = await start();
    expect(await table.find(byPid(100), 'live')).toBe(record);
    expect(await table.find(byTag('a-tag'), 'live')).toBe(record);
    expect(await table.list()).toEqual([record]);
    await expect(table.find(byPid(1), 'any')).rejects.toThrow(NOT_FOUND);
  });

  test('an ended one can be connected to for 30 s and is not live', async () => {
    const { clock, table, start, lastGuest } = setUp();
    const record = await start();
    lastGuest().reap();
    lastGuest().closeOutput();
    await record.ended;
    expect(await table.list()).toEqual([]);
    await expect(table.find(byPid(100), 'live')).rejects.toThrow(NOT_FOUND);
    await clock.advance(29_999);
    expect(await table.find(byPid(100), 'any')).toBe(record);
    await clock.advance(1);
    await expect(table.find(byPid(100), 'any')).rejects.toThrow(NOT_FOUND);
    expect(clock.pendingTimers).toBe(0);
  });

  test('of several with one tag the last that runs counts', async () => {
    const { table, start, lastGuest } = setUp();
    const first = await start();
    const second = await start();
    expect(await table.find(byTag('a-tag'), 'any')).toBe(second);
    lastGuest().reap();
    lastGuest().closeOutput();
    await second.ended;
    expect(await table.find(byTag('a-tag'), 'any')).toBe(first);
  });

  test('gives the guest the description and finds it again after a restart', async () => {
    const { spawned, start } = setUp();
    await start();
    const config = spawned[0]?.request.config ?? expect.fail();
    const { table } = setUp([createFakeGuestProcess({ pid: 7, tag: 'a-tag', config })]);
    expect(await table.list()).toMatchObject([{ pid: 7, tag: 'a-tag', config: { cmd: 'x', args: ['y'] } }]);
  });

  test('no tag and an empty tag are told apart', async () => {
    const config = encodeDescription({ tag: undefined, config: DESCRIPTION.config });
    const empty = encodeDescription({ tag: '', config: DESCRIPTION.config });
    const { table } = setUp([
      createFakeGuestProcess({ pid: 1, config }),
      createFakeGuestProcess({ pid: 2, config: empty }),
    ]);
    expect((await table.list()).map(({ tag }) => tag)).toEqual([undefined, '']);
  });

  test('a description the guest has spoiled becomes an empty one', async () => {
    const { table } = setUp([createFakeGuestProcess({ tag: 't', config: Buffer.from('\xff{', 'latin1') })]);
    expect(await table.list()).toMatchObject([{ tag: 't', config: { cmd: '' } }]);
  });

  test('a process that could not be started leaves nothing', async () => {
    const { table, fail, start } = setUp();
    fail();
    await expect(start()).rejects.toThrow('no');
    expect(await table.list()).toEqual([]);
  });

  test('a sandbox that does not answer is told to every caller and ends no server', async () => {
    const agent: Pick<Agent, 'spawn' | 'listProcesses'> = {
      spawn: () => expect.fail('spawned'),
      listProcesses: async () => {
        throw new PlatformError('sandbox_unavailable', 'gone');
      },
    };
    const table = createProcessTable({ agent, clock: createFakeClock(), log: SILENT_LOG, journal() {} });
    await expect(table.list()).rejects.toThrow('gone');
    await expect(table.start(PLAN, DESCRIPTION)).rejects.toThrow('gone');
  });

  test('tells the log that a process started and how it ended, never its arguments or environment', async () => {
    const { clock, table, journal, spawned } = setUp();
    const secret = 'a-secret';
    const config = create(ProcessConfigSchema, { cmd: '/bin/bash', args: ['-c', secret], envs: { TOKEN: secret } });
    const { record } = await table.start({ ...PLAN, env: { TOKEN: secret } }, { tag: secret, config });
    const facts = { pid: '100', cmd: '/bin/bash' };
    expect(journal).toEqual([
      {
        level: 'info',
        logger: 'process',
        message: 'process started',
        fields: { ...facts, user: 'user', terminal: 'false' },
      },
    ]);
    await clock.advance(1_500);
    // The end of a process does not wait for others that hold its output open.
    spawned[0]?.guest.reap({ code: 3 });
    await record.reaped;
    const fields = { ...facts, exitCode: '3', status: 'exit status 3', durationMs: '1500' };
    expect(journal.slice(1)).toEqual([{ level: 'info', logger: 'process', message: 'process ended', fields }]);
    expect(JSON.stringify(journal)).not.toContain(secret);
  });

  test('tells the log of a time limit, and nothing of a process that is gone with its sandbox', async () => {
    const { journal, spawned, start } = setUp();
    await start();
    const lost = await start();
    spawned[0]?.guest.reap({ signal: 9, reason: 'deadline' });
    spawned[1]?.guest.lose();
    await lost.ended;
    expect(journal.slice(2)).toMatchObject([
      { message: 'process ended at its time limit', fields: { exitCode: '-1', status: 'signal: killed' } },
    ]);
  });

  test('disposing cancels its timers', async () => {
    const { clock, table, start, lastGuest } = setUp();
    const record = await start();
    lastGuest().reap();
    lastGuest().closeOutput();
    await record.ended;
    table[Symbol.dispose]();
    expect(clock.pendingTimers).toBe(0);
  });
});
