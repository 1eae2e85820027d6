import { createHash, randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Agent, WatchEvent } from '../agent.ts';
import { type NativeGuest, startNativeGuest } from '../testing/native-guest.ts';

let guest: NativeGuest;
let agent: Agent;
beforeAll(async () => {
  guest = await startNativeGuest();
  agent = guest.agent;
});
afterAll(async () => {
  await guest[Symbol.asyncDispose]();
});

const OWNER = { uid: 1000, gid: 1000, mode: 0o644 };
const NO_XATTRS: ReadonlyMap<string, Uint8Array> = new Map();

async function* pieces(data: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < data.length; at += size) yield data.subarray(at, at + size);
}

const write = (path: string, text: string, xattrs = NO_XATTRS) =>
  agent.writeFile({ path, ...OWNER, xattrs }, pieces(Buffer.from(text), 7));

async function read(path: string, range?: { readonly offset: bigint; readonly length: bigint }): Promise<Buffer> {
  const { body } = await agent.readFile(path, range);
  const chunks: Uint8Array[] = [];
  for await (const chunk of body) chunks.push(chunk);
  return Buffer.concat(chunks);
}

describe('files of the native guest', () => {
  it('come back as they were written, with their owner, mode and attributes', async () => {
    const xattrs = new Map([['purpose', Buffer.from('test')]]);
    expect(await write('/home/user/new/dir/file.txt', 'hello world', xattrs)).toEqual({ size: 11n });
    expect((await read('/home/user/new/dir/file.txt')).toString()).toBe('hello world');
    expect((await read('/home/user/new/dir/file.txt', { offset: 6n, length: 3n })).toString()).toBe('wor');
    expect(await agent.stat('/home/user/new/dir/file.txt')).toMatchObject({
      ...{ type: 'file', size: 11n, mode: 0o644, uid: 1000, gid: 1000, owner: 'user', group: 'user', link: undefined },
    });
    expect(await agent.stat('/home/user/new')).toMatchObject({ type: 'directory', owner: 'user', mode: 0o755 });
  });

  it('of 64 MiB go up and come down equal', { timeout: 60_000 }, async () => {
    const data = randomBytes(64 * 1024 * 1024);
    const { size } = await agent.writeFile({ path: '/tmp/big', ...OWNER, xattrs: NO_XATTRS }, pieces(data, 100_000));
    expect(size).toBe(BigInt(data.length));
    const { entry, body } = await agent.readFile('/tmp/big');
    expect(entry.size).toBe(BigInt(data.length));
    const hash = createHash('sha256');
    for await (const chunk of body) hash.update(chunk);
    expect(hash.digest('hex')).toBe(createHash('sha256').update(data).digest('hex'));
    expect(await agent.remove('/tmp/big')).toEqual({ removed: true });
  });

  it('whose upload is given up leave nothing behind', async () => {
    const controller = new AbortController();
    const upload = agent.writeFile(
      { path: '/home/user/half', ...OWNER, xattrs: NO_XATTRS },
      (async function* () {
        yield Buffer.alloc(100_000);
        controller.abort();
        yield Buffer.alloc(100_000);
      })(),
      controller.signal,
    );
    await expect(upload).rejects.toMatchObject({ code: 'canceled' });
    await expect(agent.stat('/home/user/half')).rejects.toMatchObject({ code: 'not_found' });
    await expect
      .poll(async () => (await agent.listDir('/home/user', { depth: 1, max: 100 })).entries.map(({ path }) => path))
      .toEqual(['/home/user/new']);
  });

  it('whose download is left early can be read again at once', async () => {
    await write('/tmp/loop', 'x'.repeat(2_000_000));
    for (let index = 0; index < 30; index++) {
      const { body } = await agent.readFile('/tmp/loop');
      for await (const _chunk of body) break;
    }
    expect((await read('/tmp/loop')).length).toBe(2_000_000);
  });

  it('are listed in order, made, renamed and removed with their directories', async () => {
    expect(await agent.makeDir('/home/user/d/e', { ...OWNER, mode: 0o700 })).toEqual({ created: true });
    expect(await agent.makeDir('/home/user/d/e', { ...OWNER, mode: 0o700 })).toEqual({ created: false });
    await write('/home/user/d/b', '1');
    await write('/home/user/d/a', '2');
    await agent.rename('/home/user/d/b', '/home/user/d/e/c', OWNER);
    const { entries, next } = await agent.listDir('/home/user/d', { depth: 2, max: 10 });
    expect(entries.map(({ path }) => path)).toEqual(['/home/user/d/a', '/home/user/d/e', '/home/user/d/e/c']);
    expect(next).toBeUndefined();
    const first = await agent.listDir('/home/user/d', { depth: 2, max: 2 });
    const after = first.next ?? expect.fail('no second page');
    const second = await agent.listDir('/home/user/d', { depth: 2, max: 2, after });
    expect([...first.entries, ...second.entries]).toEqual(entries);
    expect(second.next).toBeUndefined();
    expect(await agent.composeFile(['/home/user/d/a', '/home/user/d/e/c'], { path: '/tmp/ab', ...OWNER })).toEqual({
      size: 2n,
    });
    expect((await read('/tmp/ab')).toString()).toBe('21');
    expect(await agent.remove('/home/user/d')).toEqual({ removed: true });
    expect(await agent.remove('/home/user/d')).toEqual({ removed: false });
  });

  it('fail with the status of the guest', async () => {
    await expect(agent.stat('/nowhere')).rejects.toMatchObject({ code: 'not_found', details: { errno: 2 } });
    await expect(agent.readFile('/home')).rejects.toMatchObject({ details: { status: 'IS_DIRECTORY' } });
    await expect(agent.listDir('/etc/passwd', { depth: 1, max: 1 })).rejects.toMatchObject({
      details: { status: 'NOT_DIRECTORY' },
    });
    await expect(agent.readFile('/dev/zero')).rejects.toMatchObject({ details: { status: 'NOT_REGULAR' } });
    await expect(write('/home', 'x')).rejects.toMatchObject({ details: { status: 'IS_DIRECTORY' } });
  });

  it('many at a time do not disturb one another', async () => {
    const names = Array.from({ length: 60 }, (_value, index) => `/tmp/many/${index}`);
    await Promise.all(names.map((name) => write(name, name.repeat(1000))));
    const contents = await Promise.all(names.map((name) => read(name)));
    expect(contents.map(String)).toEqual(names.map((name) => name.repeat(1000)));
  });

  it('users are looked up by name and id', async () => {
    const user = { uid: 1000, gid: 1000, name: 'user', home: '/home/user', shell: '/bin/bash', groups: [1000, 2000] };
    expect(await agent.lookupUser('user')).toEqual(user);
    expect(await agent.lookupUser('1000')).toEqual(user);
    await expect(agent.lookupUser('nobody-at-all')).rejects.toMatchObject({ details: { status: 'UNKNOWN_USER' } });
  });

  it('are watched, new directories too, until the watch is disposed', async () => {
    const events: WatchEvent[] = [];
    await agent.makeDir('/home/user/watched', { ...OWNER, mode: 0o755 });
    const watch = await agent.watch('/home/user/watched', { recursive: true }, (event) => events.push(event));
    await write('/home/user/watched/sub/file', 'x');
    await expect.poll(() => events.map(({ path }) => path)).toContain('sub/file');
    await watch[Symbol.asyncDispose]();
    await agent.ping();
    const count = events.length;
    await write('/home/user/watched/after', 'x');
    await agent.ping();
    expect(events.length).toBe(count);
    await expect(agent.watch('/nowhere', { recursive: false }, () => {})).rejects.toMatchObject({ code: 'not_found' });
  });
});
