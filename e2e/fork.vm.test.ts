import { Sandbox } from 'e2b';
import { Sandbox as OldSandbox } from 'e2b-2-10';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { engines } from './lib/host.ts';
import { startServer, type TestServer } from './lib/server.ts';
import { waitUntil } from './lib/wait.ts';
import { CPUS, drawnAfter, readTestimony, startWitnesses } from './lib/witness.ts';

const PATIENCE = 60_000;
/** Many emulated machines on a small host take their time. */
const LONG = { requestTimeoutMs: 300_000, timeoutMs: 600_000 };
const CAPTURES = 5;
const STREAM_LINES = 5_000;

let server: TestServer;
beforeAll(async () => {
  server = await startServer();
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  expect(engines(server)).toEqual([]);
  await server[Symbol.asyncDispose]();
});

async function createSource(): Promise<Sandbox> {
  const source = await Sandbox.create('base', {
    ...server.sdk,
    ...LONG,
    envs: { COLOUR: 'blue' },
    metadata: { a: 'b' },
  });
  onTestFinished(async () => {
    const left = await Sandbox.list(server.sdk).nextItems();
    await Promise.all(left.map(({ sandboxId }) => Sandbox.kill(sandboxId, server.sdk)));
  });
  return source;
}

async function forkInto(source: Sandbox, count: number): Promise<readonly Sandbox[]> {
  const children = await source.fork({ ...LONG, count });
  return children.map((child) => {
    if (child instanceof Error) throw child;
    return child;
  });
}

/** The answer of the control plane, in which its token is. */
async function detail({
  sandboxId,
}: Sandbox): Promise<{ readonly envdAccessToken: string; readonly metadata: unknown }> {
  return (await (await server.api(`/sandboxes/${sandboxId}`)).json()) as Awaited<ReturnType<typeof detail>>;
}

const run = async (sandbox: Sandbox, command: string): Promise<string> =>
  (await sandbox.commands.run(command, { requestTimeoutMs: PATIENCE, timeoutMs: PATIENCE })).stdout.trim();

/** Seconds by which the clock of a guest is certainly wrong, whatever the way there and back took. */
async function clockError(sandbox: Sandbox): Promise<number> {
  const before = Date.now();
  const guest = Number(await run(sandbox, 'date +%s%3N'));
  const after = Date.now();
  return Math.max(0, before - guest, guest - after) / 1000;
}

/** A program in the sandbox that counts in its memory and tells on demand. */
const COUNTER = `
import os, time
count = 0
while True:
    count += 1
    with open('/tmp/count.new', 'w') as file:
        print(os.getpid(), count, file=file)
    os.rename('/tmp/count.new', '/tmp/count')
    time.sleep(0.2)
`;

async function counted(sandbox: Sandbox): Promise<{ readonly pid: number; readonly count: number }> {
  const [pid = 0, count = 0] = (await sandbox.files.read('/tmp/count')).split(' ').map(Number);
  return { pid, count };
}

/** Numbered lines of 1 KiB from a program of the sandbox; says how many came in their order. */
async function followNumbers(sandbox: Sandbox, lines: number) {
  const program = `
import sys, time
for number in range(${lines}):
    print(f'{number:01023d}', flush=True)
    time.sleep(0.001)
`;
  await sandbox.files.write('numbers.py', program);
  let rest = '';
  let next = 0;
  const wrong: string[] = [];
  const command = await sandbox.commands.run('python3 numbers.py', {
    ...{ background: true, timeoutMs: 0 },
    onStdout(text) {
      const all = (rest + text).split('\n');
      rest = all.pop() ?? '';
      for (const line of all) {
        if (line.length !== 1023 || Number(line) !== next) wrong.push(`${next}: ${line.slice(-20)}`);
        next++;
      }
    },
  });
  return { command, wrong, count: () => next };
}

describe('fork', () => {
  it('children go on with the memory of their source, apart from it; its streams have no gap', {
    timeout: 300_000,
  }, async () => {
    const source = await createSource();
    await source.files.write('counter.py', COUNTER);
    const { pid } = await source.commands.run('python3 counter.py', { background: true, timeoutMs: 0 });
    const counting = async () => (await source.files.exists('/tmp/count')) && (await counted(source)).count > 5;
    await waitUntil(counting, { timeout: PATIENCE, what: 'the counter' });
    const before = await source.getInfo();
    const numbers = await followNumbers(source, STREAM_LINES);
    await waitUntil(() => numbers.count() > 0, { timeout: PATIENCE, what: 'the first number' });

    for (let index = 1; index < CAPTURES; index++) {
      const [only] = await forkInto(source, 1);
      await only?.kill();
    }
    expect(numbers.count()).toBeLessThan(STREAM_LINES);
    const atFork = await counted(source);
    const children = await forkInto(source, 5);
    const everybody = [source, ...children];

    const answers = children.map(async (child, index) => {
      expect(await clockError(child)).toBeLessThanOrEqual(1);
      const goesOn = async () => (await counted(child)).count > atFork.count;
      await waitUntil(goesOn, { timeout: PATIENCE, what: 'a counter to go on' });
      expect((await counted(child)).pid).toBe(atFork.pid);
      expect((await child.commands.list()).map((process) => process.pid)).toContain(pid);
      await child.files.write('mine', `child ${index}`);
      expect(await run(child, 'echo $COLOUR; hostname; cat /run/e2b/.E2B_SANDBOX_ID')).toBe(
        `blue\n${child.sandboxId}\n${child.sandboxId}`,
      );
    });
    await Promise.all(answers);
    expect(await source.files.exists('mine')).toBe(false);
    const mine = await Promise.all(children.map((child) => child.files.read('mine')));
    expect(mine).toEqual(children.map((_, index) => `child ${index}`));

    // Everybody is somebody: ids and tokens differ, and the source's opens no child.
    expect(new Set(everybody.map(({ sandboxId }) => sandboxId)).size).toBe(6);
    const info = await Promise.all(everybody.map(detail));
    const tokens = info.map(({ envdAccessToken }) => envdAccessToken);
    expect(new Set(tokens).size).toBe(6);
    const [child] = children;
    if (child === undefined) throw new Error('no child');
    const read = (token: string | undefined) =>
      fetch(`${server.url}/files?path=/home/user/mine`, {
        headers: { 'E2b-Sandbox-Id': child.sandboxId, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': token ?? '' },
      });
    expect((await read(tokens[0])).status).toBe(401);
    expect(await (await read(tokens[1])).text()).toBe('child 0');
    expect(info.map(({ metadata }) => metadata)).toEqual(everybody.map(() => ({ a: 'b' })));
    expect((await source.getInfo()).endAt).toEqual(before.endAt);

    // A child is a sandbox like any other, also for a client that knows nothing of forks.
    const old = await OldSandbox.connect(child.sandboxId, { ...server.sdk, timeoutMs: 600_000 });
    expect((await old.commands.run('cat mine')).stdout).toBe('child 0');
    await child.pause(server.sdk);
    await child.connect({ ...server.sdk, timeoutMs: 600_000 });
    expect((await detail(child)).envdAccessToken).toBe(tokens[1]);
    expect(await clockError(child)).toBeLessThanOrEqual(1);
    expect((await counted(child)).pid).toBe(atFork.pid);
    const [grandchild] = await forkInto(child, 1);
    expect(await grandchild?.files.read('mine')).toBe('child 0');

    await Promise.all(children.map((each) => each.kill()));
    const { exitCode } = await numbers.command.wait();
    expect([exitCode, numbers.count(), numbers.wrong]).toEqual([0, STREAM_LINES, []]);
    expect(await grandchild?.files.read('mine')).toBe('child 0');
  });

  it('sixteen copies of one moment never see the same random bytes, and go on counting', {
    timeout: 400_000,
  }, async () => {
    const source = await createSource();
    const pids = await startWitnesses(source);
    const busy = async () => (await source.files.exists('witness-1')) && (await readTestimony(source, '1')).length > 20;
    await waitUntil(busy, { timeout: PATIENCE, what: 'the witnesses' });
    const children = await forkInto(source, 16);
    const everybody = [source, ...children];

    for (const cpu of CPUS) {
      const testimonies = await Promise.all(everybody.map((sandbox) => readTestimony(sandbox, cpu)));
      const drawn = testimonies.flatMap((testimony, index) => {
        // Compared with a sibling, never with itself.
        const other = testimonies[(index + 1) % testimonies.length] ?? [];
        const bytes = drawnAfter(testimony, other);
        expect(bytes.length).toBeGreaterThan(20);
        return bytes;
      });
      expect(new Set(drawn).size).toBe(drawn.length);
      for (const testimony of testimonies) {
        expect(testimony.map(({ count }) => count)).toEqual(testimony.map((_, index) => index + 1));
      }
    }
    for (const child of children) {
      expect((await child.commands.list()).map(({ pid }) => pid)).toEqual(expect.arrayContaining([...pids]));
    }
  });

  it('refuses what it cannot do with the errors clients know', async () => {
    const source = await createSource();
    for (const count of [0, 101]) await expect(source.fork({ count })).rejects.toThrow(/count must be at/);
    await source.pause(server.sdk);
    await expect(source.fork({ count: 1 })).rejects.toThrow(/is paused/);
    await expect(Sandbox.fork('iaaaaaaaaaaaaaaaaaaaa', server.sdk)).rejects.toThrow(/not found/);
  });
});
