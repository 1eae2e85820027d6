import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Agent } from '@agentenv/agent';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type SanitizedGuest, startSanitizedGuest } from './support/sanitized-guest.ts';
import { sh, start } from './support/shell.ts';

/** Connections of each seed, and what is asked for on each. */
const ROUNDS = 5;
const OPERATIONS = 60;

/** Sends back what it receives. */
const ECHO_PORT = 8100;
const ECHO_SERVER = `
import socket, threading
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('127.0.0.1', ${ECHO_PORT}))
server.listen(50)
def echo(connection):
    try:
        while data := connection.recv(65536): connection.sendall(data)
    except OSError: pass
    connection.close()
while True: threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()
`;

let guest: SanitizedGuest;
beforeAll(async () => {
  guest = await startSanitizedGuest();
});
afterAll(async () => {
  await guest.stop();
});

/** Small and repeatable; the order of what happens in the guest is not. */
function createRandom(seed: number): (limit: number) => number {
  let state = seed * 2_654_435_761 + 1;
  return (limit) => {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
    return Math.floor((state / 2_147_483_648) * limit);
  };
}

type Deed = (
  agent: Agent,
  random: (limit: number) => number,
  directory: string,
  signal: AbortSignal,
) => Promise<unknown>;

async function* pieces(count: number): AsyncGenerator<Uint8Array> {
  for (let index = 0; index < count; index++) yield Buffer.alloc(20_000, index);
}

const DEEDS: readonly Deed[] = [
  (agent) => sh(agent, 'echo out; echo err >&2; exit 3'),
  async (agent, random, _directory, signal) => {
    const process = await agent.spawn(
      {
        ...{ user: 'root', argv: ['cat'], env: {}, cwd: '/', defaultCwd: '/', stdin: true, tag: 'cat' },
        ...{ config: new Uint8Array(random(1000)), killAfterMs: random(2) * (1 + random(300)) },
      },
      signal,
    );
    process.onOutput(() => {});
    await process.writeStdin(Buffer.alloc(random(300_000)), signal);
    if (random(2) === 0) await process.closeStdin();
    else await process.signal(random(2) === 0 ? 9 : 15);
    await process.exit;
  },
  async (agent, random) => {
    const process = await start(
      agent,
      ['sh', '-c', 'yes | head -c 3000000'],
      random(3) === 0 ? { pty: { cols: 80, rows: 24 } } : {},
    );
    process.onOutput(() => (random(20) === 0 ? Promise.reject(new Error('a consumer that fails')) : undefined));
    await process.outputEnd;
  },
  (agent, random, directory, signal) =>
    agent.writeFile(
      {
        path: join(directory, `f${random(5)}`),
        uid: 0,
        gid: 0,
        mode: 0o644,
        xattrs: new Map([['k', Buffer.from('v')]]),
      },
      pieces(random(40)),
      signal,
    ),
  async (agent, random, directory, signal) => {
    const { body } = await agent.readFile(join(directory, `f${random(5)}`), undefined, signal);
    for await (const _chunk of body) if (random(10) === 0) break;
  },
  (agent, random, directory, signal) => agent.listDir(directory, { depth: 1 + random(3), max: random(50) }, signal),
  (agent, random, directory, signal) =>
    agent.makeDir(join(directory, `d${random(3)}`, `e${random(3)}`), { uid: 0, gid: 0, mode: 0o755 }, signal),
  (agent, random, directory, signal) => agent.remove(join(directory, `d${random(3)}`), signal),
  (agent, random, directory, signal) =>
    agent.rename(join(directory, `f${random(5)}`), join(directory, `d${random(3)}/f`), { uid: 0, gid: 0 }, signal),
  async (agent, random, directory, signal) => {
    await using _watch = await agent.watch(directory, { recursive: random(2) === 0 }, () => {}, signal);
    await agent.makeDir(join(directory, `w${random(1000)}`), { uid: 0, gid: 0, mode: 0o755 }, signal);
  },
  async (agent, random, _directory, signal) => {
    const connection = await agent.connectPort(ECHO_PORT, signal);
    connection.on('error', () => {});
    connection.resume();
    connection.write(Buffer.alloc(random(200_000)));
    if (random(2) === 0) connection.destroy();
    else connection.end();
    await new Promise((resolve) => connection.once('close', resolve));
  },
  async (agent, random, _directory, signal) => {
    const port = 8200 + random(4);
    await using _listening = await agent.listenPort(port, (connection) => connection.resume().end('bye'), signal);
    await sh(agent, `python3 -c "import socket; s=socket.create_connection(('127.0.0.1',${port})); s.recv(9)"`);
  },
  (agent, random, _directory, signal) => agent.source(BigInt(random(2_000_000)), 1 + random(65_536), () => {}, signal),
  (agent, random, _directory, signal) => agent.sink(pieces(random(30)), signal),
  (agent) => Promise.all([agent.metrics(), agent.ping(), agent.listProcesses(), agent.lookupUser('root')]),
  async (agent, random) => {
    const leaseMs = 1 + random(300);
    await (random(3) === 0 ? agent.settle(leaseMs) : agent.quiesce(leaseMs));
    await agent.activate({
      ...{ key: new Uint8Array(16), generation: 'chaos', resetStreams: random(2) === 0, hostname: '' },
      files: [{ path: join(guest.directory, 'activated'), mode: 0o644, content: String(random(9)) }],
    });
  },
];

describe('everything at once, with callers that give up and connections that break', () => {
  const openFiles = async (): Promise<number> => (await readdir(`/proc/${guest.pid}/fd`)).length;

  /** One connection: much is begun on it, and it breaks wherever that happens to be. */
  async function round(random: (limit: number) => number, directory: string): Promise<void> {
    const agent = await guest.connect();
    const echo = await start(agent, ['python3', '-c', ECHO_SERVER]);
    const deeds = Array.from({ length: OPERATIONS }, async () => {
      const deed = DEEDS[random(DEEDS.length)] ?? (() => agent.ping());
      const signal = random(3) === 0 ? AbortSignal.timeout(random(150)) : new AbortController().signal;
      // Most of it fails in some way; what counts is the guest.
      await deed(agent, random, directory, signal).catch(() => {});
    });
    const patience = new Promise((resolve) => setTimeout(resolve, 300 + random(700)));
    await Promise.race([Promise.all(deeds), patience]);
    // Where the round before has left its port busy, it ended by itself.
    await echo.signal(9).catch(() => {});
    await agent[Symbol.asyncDispose]();
    // None of them may outlive its connection.
    await Promise.all(deeds);
  }

  test.each([1, 2, 3])('seed %i: nothing hangs, nothing is left, the guest stays sound', async (seed) => {
    const before = await openFiles();
    const random = createRandom(seed);
    const directory = join(guest.directory, `seed-${seed}`);
    await mkdir(directory);
    for (let index = 0; index < ROUNDS; index++) await round(random, directory);

    await using agent = await guest.connect();
    await agent.activate({ key: new Uint8Array(16), generation: 'after', resetStreams: true, hostname: '', files: [] });
    const left = await agent.listProcesses();
    expect((await sh(agent, 'echo sound')).stdout).toBe('sound\n');
    await Promise.all(
      left.map(async (process) => {
        process.onOutput(() => {});
        // Some have ended meanwhile.
        await process.signal(9).catch(() => {});
        await process.outputEnd;
      }),
    );
    // Its connection is one.
    await expect.poll(openFiles, { timeout: 10_000 }).toBeLessThanOrEqual(before + 1);
    expect((await agent.metrics()).agentRss).toBeLessThan(200 * 1024 * 1024);
  });
});
