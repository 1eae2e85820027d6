import type { Agent, WatchEvent } from '@agentenv/agent';
import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { createFakeAgent } from './agent.ts';
import { bootImage, FakeGuest } from './guest.ts';
import { splitWords } from './guest-commands.ts';
import { WATCH_MASK } from './guest-files.ts';

const USER = { uid: 1000, gid: 1000, mode: 0o644 };
const ROOT_SPAWN = {
  ...{ user: 'root', env: {}, cwd: '', defaultCwd: '', stdin: true, tag: 't' },
  config: Uint8Array.of(1, 2),
  killAfterMs: 0,
};

function open() {
  const clock = createFakeClock();
  const guest = new FakeGuest(bootImage({ clock, bootId: 'first' }), { clock, onPower() {} });
  guest.go();
  return { clock, guest, agent: createFakeAgent(guest) };
}

async function* bytes(...pieces: readonly string[]) {
  for (const piece of pieces) yield Buffer.from(piece);
}

async function write(agent: Agent, path: string, ...pieces: readonly string[]) {
  return agent.writeFile({ path, ...USER, xattrs: new Map() }, bytes(...pieces));
}

async function read(agent: Agent, path: string, range?: { offset: bigint; length: bigint }): Promise<string> {
  const { body } = await agent.readFile(path, range);
  return Buffer.concat(await Array.fromAsync(body)).toString();
}

describe('files of a fake guest', () => {
  test('are written with parents, owner and mode, and read whole or in part', async () => {
    const { agent } = open();
    expect(await write(agent, '/home/user/a/b.txt', 'hel', 'lo')).toEqual({ size: 5n });
    expect(await read(agent, '/home/user/a/../a/b.txt')).toBe('hello');
    expect(await read(agent, '/home/user/a/b.txt', { offset: 1n, length: 3n })).toBe('ell');
    expect(await agent.stat('/home/user/a/b.txt')).toMatchObject({
      owner: 'user',
      mode: 0o644,
      size: 5n,
      type: 'file',
    });
    expect(await agent.stat('/home/user/a')).toMatchObject({ owner: 'user', mode: 0o755, type: 'directory' });
  });

  test('an overwritten file keeps its inode and mode and gets the owner', async () => {
    const { agent } = open();
    const before = await agent.stat('/etc/os-release');
    await write(agent, '/etc/os-release', 'new');
    const after = await agent.stat('/etc/os-release');
    expect({ ...after, owner: before.owner }).toMatchObject({ inode: before.inode, mode: before.mode });
    expect([before.owner, after.owner]).toEqual(['root', 'user']);
    expect(await read(agent, '/etc/os-release')).toBe('new');
  });

  test('are listed pre-order, siblings by name, to a depth and a number', async () => {
    const { agent } = open();
    for (const path of ['/d/b/x', '/d/a', '/d/b.c', '/d/b/y/z']) await write(agent, path, '');
    const names = async (depth: number, max = 100) => {
      const pages: string[][] = [];
      for (let after: Uint8Array | undefined, first = true; first || after !== undefined; first = false) {
        const page = await agent.listDir('/d', { depth, max, ...(after === undefined ? {} : { after }) });
        pages.push(page.entries.map(({ path }) => path));
        after = page.next;
      }
      return pages;
    };
    expect(await names(1)).toEqual([['/d/a', '/d/b', '/d/b.c']]);
    expect(await names(9)).toEqual([['/d/a', '/d/b', '/d/b/x', '/d/b/y', '/d/b/y/z', '/d/b.c']]);
    expect(await names(9, 4)).toEqual([
      ['/d/a', '/d/b', '/d/b/x', '/d/b/y'],
      ['/d/b/y/z', '/d/b.c'],
    ]);
  });

  test('are renamed with everything below, composed and removed', async () => {
    const { agent } = open();
    await write(agent, '/d/one', '1');
    await write(agent, '/d/two', '2');
    await agent.composeFile(['/d/one', '/d/two'], { path: '/d/both', ...USER });
    expect(await read(agent, '/d/both')).toBe('12');
    await agent.rename('/d', '/moved/here', USER);
    expect(await read(agent, '/moved/here/both')).toBe('12');
    await expect(agent.stat('/d')).rejects.toMatchObject({ details: { status: 'NOT_FOUND' } });
    await expect(agent.stat('/moved/here/one')).rejects.toMatchObject({ details: { status: 'NOT_FOUND' } });
    expect(await agent.remove('/moved')).toEqual({ removed: true });
    expect(await agent.remove('/moved')).toEqual({ removed: false });
  });

  test('are watched, with or without what is below, until the watch ends', async () => {
    const { agent } = open();
    await agent.makeDir('/w/sub', USER);
    const flat: WatchEvent[] = [];
    const deep: WatchEvent[] = [];
    const watch = await agent.watch('/w', { recursive: false }, (event) => flat.push(event));
    await agent.watch('/w', { recursive: true }, (event) => deep.push(event));
    await write(agent, '/w/sub/x', '1');
    await write(agent, '/w/y', '1');
    await watch[Symbol.asyncDispose]();
    await agent.remove('/w/y');
    expect(flat.map(({ path, mask }) => [path, mask])).toEqual([
      ['y', WATCH_MASK.create],
      ['y', WATCH_MASK.closeWrite],
    ]);
    expect(deep.map(({ path }) => path)).toEqual(['sub/x', 'sub/x', 'y', 'y', 'y']);
  });
});

describe('processes of a fake guest', () => {
  test('are listed with tag and config while they live', async () => {
    const { agent } = open();
    const process = await agent.spawn({ ...ROOT_SPAWN, argv: ['cat'] });
    expect(await agent.listProcesses()).toEqual([process]);
    expect({ tag: process.tag, config: process.config }).toEqual({ tag: 't', config: Uint8Array.of(1, 2) });
    await process.signal(15);
    expect(await process.exit).toMatchObject({ code: 0, signal: 15 });
    expect(await agent.listProcesses()).toEqual([]);
    await expect(process.signal(15)).rejects.toMatchObject({ details: { status: 'NOT_FOUND' } });
    await expect(process.writeStdin(Buffer.from('x'))).rejects.toMatchObject({ code: 'conflict' });
  });

  test('a consumer that stalls blocks the writer, and nothing is lost', async () => {
    const { clock, agent } = open();
    const process = await agent.spawn({ ...ROOT_SPAWN, argv: ['cat'] });
    const gate = Promise.withResolvers<void>();
    let received = 0;
    process.onOutput(async ({ data }) => {
      await gate.promise;
      received += data.byteLength;
    });
    const piece = Buffer.alloc(64 * 1024);
    let written = 0;
    const writer = (async () => {
      for (let count = 0; count < 20; count++) {
        await process.writeStdin(piece);
        written += piece.byteLength;
      }
      await process.closeStdin();
    })();
    await clock.advance(0);
    expect(written).toBeLessThan(20 * piece.byteLength);
    gate.resolve();
    await writer;
    await process.outputEnd;
    expect(received).toBe(20 * piece.byteLength);
    expect(process.received('stdout')).toBe(BigInt(received));
  });

  test('see user, directory, environment and arguments as a shell would pass them', async () => {
    const { agent } = open();
    const run = async (argv: readonly string[], env = {}) => {
      const process = await agent.spawn({ ...ROOT_SPAWN, user: 'user', argv, env });
      const pieces: string[] = [];
      process.onOutput(({ data }) => void pieces.push(Buffer.from(data).toString()));
      await process.outputEnd;
      return [pieces.join(''), (await process.exit).code];
    };
    expect(await run(['whoami'])).toEqual(['user\n', 0]);
    expect(await run(['pwd'])).toEqual(['/home/user\n', 0]);
    expect(await run(['bash', '-l', '-c', 'echo "$GREETING $HOME"'], { GREETING: 'hi' })).toEqual([
      'hi /home/user\n',
      0,
    ]);
    expect(await run(['sh', '-c', 'nonsense'])).toEqual(['sh: line 1: nonsense: command not found\n', 127]);
    expect(splitWords(`a 'b $X' "c $X"d`, { X: '1' })).toEqual(['a', 'b $X', 'c 1d']);
  });
});
