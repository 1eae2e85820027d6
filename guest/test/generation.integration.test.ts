import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Activation, Agent, GuestFile } from '@agentenv/agent';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type SanitizedGuest, startSanitizedGuest } from './support/sanitized-guest.ts';
import { finish, sh, start } from './support/shell.ts';

let guest: SanitizedGuest;
let agent: Agent;
beforeAll(async () => {
  guest = await startSanitizedGuest();
  agent = await guest.connect();
});
afterAll(async () => {
  await agent?.[Symbol.asyncDispose]();
  await guest.stop();
});

const activation = (more: Partial<Activation> = {}): Activation => ({
  key: new Uint8Array(16),
  generation: 'generation',
  resetStreams: false,
  hostname: '',
  files: [],
  ...more,
});

/** Whether the kernel says that the user processes are frozen. */
async function frozen(): Promise<boolean> {
  return (await readFile(join(guest.cgroup ?? '', 'cgroup.events'), 'utf8')).includes('frozen 1');
}

describe.runIf(process.getuid?.() === 0)('quiesce', () => {
  test('freezes the processes until activate, and their output goes on without a gap', async () => {
    const counter = await start(agent, [
      'sh',
      '-c',
      'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo $i; done; exec sleep 1000',
    ]);
    let text = '';
    counter.onOutput(({ data }) => {
      text += Buffer.from(data).toString();
    });
    await expect.poll(() => text.length).toBeGreaterThan(100);
    const { processes, frozenMs } = await agent.quiesce(10_000);
    expect(processes).toBe(1);
    expect(frozenMs).toBeLessThan(5000);
    expect(await frozen()).toBe(true);
    const held = text.length;
    await expect.poll(() => frozen()).toBe(true);
    expect(text.length).toBe(held);
    await agent.activate(activation());
    expect(await frozen()).toBe(false);
    await expect.poll(() => text.endsWith('20000\n'), { timeout: 20_000 }).toBe(true);
    expect(text.trim().split('\n').map(Number)).toEqual(Array.from({ length: 20_000 }, (_value, index) => index + 1));
    await counter.signal(9);
    await counter.exit;
  });

  test('is a lease: without activate the guest thaws by itself and answers again', async () => {
    await agent.quiesce(200);
    expect(await frozen()).toBe(true);
    await expect.poll(frozen, { timeout: 5000 }).toBe(false);
    await agent[Symbol.asyncDispose]();
    agent = await guest.connect();
    await agent.ping();
  });

  test('outlives the connection: the next one is answered, and its activate thaws', async () => {
    await agent.quiesce(10_000);
    await agent[Symbol.asyncDispose]();
    agent = await guest.connect();
    await agent.ping();
    expect(await frozen()).toBe(true);
    await agent.activate(activation({ resetStreams: true }));
    expect(await frozen()).toBe(false);
    expect((await sh(agent, 'echo alive')).stdout).toBe('alive\n');
  });

  test('of a connection that is replaced begins its lease anew', async () => {
    await agent.quiesce(400);
    await agent[Symbol.asyncDispose]();
    agent = await guest.connect();
    await expect.poll(frozen, { timeout: 5000 }).toBe(false);
    expect((await sh(agent, 'echo alive')).stdout).toBe('alive\n');
  });

  test('settled, its disk is written as well, and it stays frozen until activate', {
    timeout: 60_000,
  }, async () => {
    const writer = await start(agent, ['sh', '-c', 'while :; do echo x; done']);
    const { processes, frozenMs } = await agent.settle(30_000);
    expect(processes).toBe(1);
    expect(frozenMs).toBeGreaterThan(0);
    expect(await frozen()).toBe(true);
    await agent.activate(activation());
    expect(await frozen()).toBe(false);
    await writer.signal(9);
    await writer.exit;
  });

  test('a settle that is given up thaws, and the next quiesce is not answered by its late worker', async () => {
    for (let round = 0; round < 10; round++) {
      const outcome = await agent.settle(10_000, AbortSignal.timeout(1)).then(
        () => 'settled' as const,
        () => 'given up' as const,
      );
      if (outcome === 'settled') await agent.activate(activation());
      await expect.poll(frozen, { timeout: 5000 }).toBe(false);
      await agent.quiesce(10_000);
      expect(await frozen()).toBe(true);
      await agent.activate(activation());
    }
    expect((await sh(agent, 'echo alive')).stdout).toBe('alive\n');
  });

  test('fifty times under load: never a lost or doubled byte', { timeout: 60_000 }, async () => {
    const writer = await start(agent, ['seq', '1000000000']);
    let next = 1;
    let rest = '';
    const wrong: string[] = [];
    writer.onOutput(({ data }) => {
      const lines = (rest + Buffer.from(data).toString()).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) if (Number(line) !== next++) wrong.push(line);
    });
    for (let round = 0; round < 50; round++) {
      const before = next;
      await expect.poll(() => next, { interval: 1, timeout: 10_000 }).toBeGreaterThan(before);
      await agent.quiesce(10_000);
      await agent.activate(activation());
    }
    await writer.signal(9);
    await writer.exit;
    expect(wrong.slice(0, 3)).toEqual([]);
  });
});

describe('activate', () => {
  describe.each(['on a disk', 'in memory'])('files %s', (where) => {
    let directory: string;
    beforeAll(async () => {
      directory = where === 'in memory' ? await mkdtemp('/dev/shm/aenv-test-') : join(guest.directory, 'activate');
    });
    afterAll(async () => {
      await rm(directory, { recursive: true, force: true });
    });
    const path = (name: string): string => join(directory, name);
    const file = (name: string, content: string, mode = 0o644) => ({ path: path(name), mode, content });
    const write = (...files: readonly GuestFile[]) => agent.activate(activation({ files }));
    const read = (name: string) => readFile(path(name), 'utf8');

    test('are made, with their directories', async () => {
      await write(file('a', 'first', 0o600), file('b/c', 'second'));
      expect([await read('a'), await read('b/c')]).toEqual(['first', 'second']);
      expect((await agent.stat(path('a'))).mode).toBe(0o600);
    });

    test('are written in place: longer, shorter, empty, with another mode', async () => {
      const { ino } = await stat(path('a'));
      for (const [content, mode] of [
        ['longer than before', 0o600],
        ['short', 0o640],
        ['', 0o644],
      ] as const) {
        await write(file('a', content, mode), file('b/c', 'second'));
        expect(await read('a')).toBe(content);
        expect((await stat(path('a'))).mode & 0o777).toBe(mode);
      }
      expect((await stat(path('a'))).ino).toBe(ino);
    });

    test('that are equal already are left alone, but for their mode', async () => {
      await sh(agent, `touch -d @1000 ${path('b/c')} && chmod 444 ${path('b/c')}`);
      await write(file('b/c', 'second'));
      expect(await agent.stat(path('b/c'))).toMatchObject({ mtimeNs: 1_000_000_000_000n, mode: 0o644 });
    });

    test('take the place of links and FIFOs of the same name', async () => {
      await writeFile(path('victim'), 'untouched');
      await sh(agent, `cd ${path('.')} && ln -s victim link && mkfifo fifo`);
      await write(file('link', 'x'), file('fifo', 'y'));
      expect([await read('victim'), await read('link'), await read('fifo')]).toEqual(['untouched', 'x', 'y']);
    });

    test('that cannot be written are named, and end the connection', async () => {
      await sh(agent, `mkdir ${path('directory')}`);
      await expect(write(file('directory', 'x'), file('a', 'written all the same'))).rejects.toMatchObject({
        message: expect.stringContaining(path('directory')),
      });
      expect(await read('a')).toBe('written all the same');
      await agent[Symbol.asyncDispose]();
      agent = await guest.connect();
    });
  });

  test('of a new generation ends connections, transfers and watches, and keeps processes', async () => {
    await writeFile(join(guest.directory, 'big'), randomBytes(2_000_000));
    const cat = await start(agent, ['cat'], { stdin: true });
    await agent.watch(guest.directory, { recursive: true }, () => {});
    const { body } = await agent.readFile(join(guest.directory, 'big'));
    await agent.activate(activation({ resetStreams: true }));
    await expect(Array.fromAsync(body)).rejects.toMatchObject({ code: 'canceled' });
    const result = finish(cat);
    await cat.writeStdin(Buffer.from('still here'));
    await cat.closeStdin();
    expect((await result).stdout).toBe('still here');
    const children = async () => (await readFile(`/proc/${guest.pid}/task/${guest.pid}/children`, 'utf8')).trim();
    await expect.poll(children, { timeout: 10_000 }).toBe('');
  });

  test('of the same generation lets transfers go on', async () => {
    const content = randomBytes(3_000_000);
    await writeFile(join(guest.directory, 'big'), content);
    const { body } = await agent.readFile(join(guest.directory, 'big'));
    const chunks: Uint8Array[] = [];
    for await (const chunk of body) {
      if (chunks.length % 20 === 0) {
        await agent.quiesce(10_000);
        await agent.activate(activation());
      }
      chunks.push(chunk);
    }
    expect(Buffer.concat(chunks).equals(content)).toBe(true);
  });

  test('changes the key: the former one is never answered again', async () => {
    const key = randomBytes(16);
    await agent.activate(activation({ key }));
    await agent[Symbol.asyncDispose]();
    const stranger = await guest.connectRaw();
    await expect(
      Promise.race([stranger.resync(), stranger.silentFor(500).then(() => Promise.reject(new Error('silence')))]),
    ).rejects.toThrow('silence');
    stranger[Symbol.dispose]();
    agent = await guest.connect(key);
    await agent.activate(activation());
  });
});

describe('metrics, clock and users', () => {
  test('are plausible', async () => {
    const metrics = await agent.metrics();
    expect(metrics.memTotal).toBeGreaterThan(metrics.memUsed);
    expect(metrics.diskTotal).toBeGreaterThan(metrics.diskUsed);
    expect(metrics.cpuCount).toBeGreaterThan(0);
    expect(metrics.cpuUsedPct).toBeLessThanOrEqual(100);
    expect(Math.abs(await agent.clockSkew())).toBeLessThan(1000);
    expect(await agent.lookupUser('root')).toMatchObject({ uid: 0, gid: 0, home: '/root' });
    expect(await agent.lookupUser('0')).toMatchObject({ name: 'root' });
    await expect(agent.lookupUser('4294967297')).rejects.toMatchObject({ details: { status: 'UNKNOWN_USER' } });
  });
});
