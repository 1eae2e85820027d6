import { randomBytes } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import type { GuestProcess, SpawnRequest } from '../agent.ts';
import { startNativeGuest } from '../testing/native-guest.ts';

const SPAWN: SpawnRequest = {
  ...{ user: 'user', argv: ['true'], env: {}, cwd: '', defaultCwd: '', stdin: false },
  ...{ tag: '', config: new Uint8Array(0), killAfterMs: 0 },
};
/** Numbers without end, each on its line, as fast as somebody takes them. */
const COUNT: SpawnRequest = {
  ...SPAWN,
  argv: ['seq', '1', '1000000000'],
  tag: 'count',
  config: Uint8Array.of(1, 2, 3),
};

/** Checks that a numbered stream goes on where it was, without a gap or a repeat. */
function counter(): { readonly take: (data: Uint8Array) => void; readonly next: () => number; synchronise(): void } {
  let partial = '';
  let next = 1;
  let synchronised = true;
  return {
    next: () => next,
    /** A new epoch may have lost what was in flight: go on at whatever whole line comes next. */
    synchronise() {
      synchronised = false;
    },
    take(data) {
      partial += Buffer.from(data).toString('latin1');
      const lines = partial.split('\n');
      partial = lines.pop() ?? '';
      if (!synchronised && lines.length > 1) {
        lines.shift();
        next = Number(lines[0]);
        synchronised = true;
      }
      if (!synchronised) return;
      for (const line of lines) {
        if (line !== String(next)) throw new Error(`"${line}" instead of ${next}`);
        next++;
      }
    },
  };
}

/** Feeds a counter from a process; what does not fit is remembered and fails the test. */
function follow(process: GuestProcess, count: ReturnType<typeof counter>): { readonly errors: unknown[] } {
  const errors: unknown[] = [];
  process.onOutput(({ data }) => {
    try {
      count.take(data);
    } catch (caught) {
      errors.push(caught);
    }
  });
  return { errors };
}

describe('epochs of the native guest', () => {
  it('quiesce and activate: a numbered stream goes on without a gap, and in between nothing arrives', async () => {
    await using guest = await startNativeGuest();
    const { agent } = guest;
    const process = await agent.spawn(COUNT);
    const count = counter();
    const { errors } = follow(process, count);
    for (let round = 0; round < 5; round++) {
      const before = count.next();
      await expect.poll(count.next).toBeGreaterThan(before);
      const { processes } = await agent.quiesce(10_000);
      expect(processes).toBeGreaterThanOrEqual(0);
      const received = process.received('stdout');
      const turns = Array.from({ length: 20 }, () => new Promise((resolve) => setImmediate(resolve)));
      await Promise.all(turns);
      expect(process.received('stdout')).toBe(received);
      guest.key = randomBytes(16);
      await agent.activate({
        key: guest.key,
        generation: `g${round}`,
        resetStreams: false,
        hostname: 'box',
        files: [],
      });
      const after = count.next();
      await expect.poll(count.next).toBeGreaterThan(after);
    }
    expect(errors).toEqual([]);
    await process.signal(9);
    expect(await process.exit).toMatchObject({ signal: 9 });
  });

  it('a new generation resets connections, keeps processes, writes its files and takes its key', async () => {
    await using guest = await startNativeGuest();
    const { agent } = guest;
    const process = await agent.spawn({ ...SPAWN, argv: ['cat'], stdin: true });
    const listener = await agent.listenPort(7100, () => {});
    await agent.quiesce(10_000);
    guest.key = randomBytes(16);
    const file = { path: '/run/e2b/.E2B_SANDBOX_ID', mode: 0o644, content: 'iabc' };
    await agent.activate({ key: guest.key, generation: 'g', resetStreams: true, hostname: 'box', files: [file] });
    const { body } = await agent.readFile(file.path);
    const chunks: Uint8Array[] = [];
    for await (const chunk of body) chunks.push(chunk);
    expect(Buffer.concat(chunks).toString()).toBe('iabc');
    await (await agent.listenPort(7100, () => {}))[Symbol.asyncDispose]();
    await listener[Symbol.asyncDispose]();
    let echo = '';
    process.onOutput(({ data }) => {
      echo += Buffer.from(data).toString();
    });
    await process.writeStdin(Buffer.from('still'));
    await process.closeStdin();
    await process.outputEnd;
    expect(echo).toBe('still');
    await guest.reconnect();
  });

  it('a hundred reconnects in the middle of a flood: always in step again, processes go on', {
    timeout: 60_000,
  }, async () => {
    await using guest = await startNativeGuest();
    let process: GuestProcess | undefined = await guest.agent.spawn(COUNT);
    const { id, pid } = process;
    const count = counter();
    let errors: unknown[] = [];
    for (let round = 0; round < 100; round++) {
      if (process === undefined) throw new Error('the process is gone');
      ({ errors } = follow(process, count));
      const received = process.received('stdout');
      const { received: sofar } = process;
      await expect.poll(() => sofar('stdout') > received, { interval: 1 }).toBe(true);
      const agent = await guest.reconnect();
      expect(errors).toEqual([]);
      count.synchronise();
      process = (await agent.listProcesses()).find((candidate) => candidate.tag === 'count');
      expect(process).toMatchObject({ id, pid, config: Uint8Array.of(1, 2, 3) });
      expect(process?.received('stdout')).toBeGreaterThanOrEqual(received);
    }
    await process?.signal(15);
    expect(await process?.exit).toMatchObject({ signal: 15 });
    expect((await guest.agent.spawn(SPAWN)).id).toBeGreaterThan(id);
  });

  it('after a reconnect stdin works, and exits of meanwhile are reported', async () => {
    await using guest = await startNativeGuest();
    await guest.agent.spawn({ ...SPAWN, argv: ['cat'], stdin: true, tag: 'cat' });
    const ended = await guest.agent.spawn({ ...SPAWN, argv: ['sh', '-c', 'exit 7'], tag: 'ended' });
    ended.onOutput(() => {});
    await Promise.all([ended.exit, ended.outputEnd]);
    const agent = await guest.reconnect();
    const processes = await agent.listProcesses();
    const again = processes.find(({ tag }) => tag === 'ended');
    expect(await again?.exit).toMatchObject({ code: 7, signal: 0 });
    await again?.outputEnd;
    const cat = processes.find(({ tag }) => tag === 'cat');
    let echo = '';
    cat?.onOutput(({ data }) => {
      echo += Buffer.from(data).toString();
    });
    await cat?.writeStdin(Buffer.from('hello'));
    await cat?.closeStdin();
    expect(await cat?.exit).toMatchObject({ code: 0 });
    await cat?.outputEnd;
    expect(echo).toBe('hello');
  });

  it('a wrong key is never answered', async () => {
    await using guest = await startNativeGuest();
    const right = guest.key;
    const next = randomBytes(16);
    await guest.agent.activate({ key: next, generation: 'g', resetStreams: false, hostname: 'box', files: [] });
    guest.key = right;
    await expect(guest.reconnect({ resyncTimeoutMs: 300 })).rejects.toMatchObject({ code: 'sandbox_unavailable' });
    guest.key = next;
    await (await guest.reconnect()).ping();
  });

  it('a killed guest: every call and process rejects, and the agent says that it is closed', async () => {
    await using guest = await startNativeGuest();
    const { agent } = guest;
    const process = await agent.spawn({ ...SPAWN, argv: ['sleep', '60'] });
    const connections: unknown[] = [];
    const waiting = Promise.allSettled([
      process.exit,
      process.outputEnd,
      agent.sink(
        (async function* () {
          for (;;) yield new Uint8Array(65_536);
        })(),
      ),
      agent.source(1n << 50n, 32_768, () => connections.push(1)),
    ]);
    await expect.poll(() => connections.length).toBeGreaterThan(0);
    guest.kill();
    const gone = expect.objectContaining({ code: 'sandbox_unavailable' });
    expect(await agent.closed).toMatchObject({ kind: 'disconnected' });
    for (const outcome of await waiting) expect(outcome).toEqual({ status: 'rejected', reason: gone });
    await expect(agent.ping()).rejects.toEqual(gone);
    await expect(process.signal(9)).rejects.toEqual(gone);
    await expect(process.writeStdin(new Uint8Array(1))).rejects.toEqual(gone);
  });
});
