import { randomBytes } from 'node:crypto';
import { mkdir, readdir, readFile, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Agent, WriteFileRequest } from '@agentenv/agent';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type SanitizedGuest, startSanitizedGuest } from './support/sanitized-guest.ts';
import { finish, sh, start } from './support/shell.ts';

let guest: SanitizedGuest;
let agent: Agent;
let directory: string;
let count = 0;
beforeAll(async () => {
  guest = await startSanitizedGuest();
  agent = await guest.connect();
});
beforeEach(async () => {
  directory = join(guest.directory, `case-${count++}`);
  await mkdir(directory);
});
afterAll(async () => {
  await agent?.[Symbol.asyncDispose]();
  await guest.stop();
});

async function* once(...chunks: readonly (string | Uint8Array)[]): AsyncGenerator<Uint8Array> {
  for (const chunk of chunks) yield Buffer.from(chunk);
}

function write(path: string, content: string | Uint8Array, more: Partial<WriteFileRequest> = {}) {
  return agent.writeFile({ path, uid: 1234, gid: 2345, mode: 0o666, xattrs: new Map(), ...more }, once(content));
}

async function read(path: string, range?: { readonly offset: bigint; readonly length: bigint }): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of (await agent.readFile(path, range)).body) chunks.push(chunk);
  return Buffer.concat(chunks);
}

const status = (name: string) => ({ details: { status: name } });

describe('write-file', () => {
  test('links a new file in as a whole, with owner and mode, and creates parents', async () => {
    expect(await write(join(directory, 'a/b/c'), 'content')).toEqual({ size: 7n });
    expect(await readFile(join(directory, 'a/b/c'), 'utf8')).toBe('content');
    expect(await stat(join(directory, 'a/b/c'))).toMatchObject({ mode: 0o100644, uid: 1234, gid: 2345 });
    expect(await stat(join(directory, 'a'))).toMatchObject({ mode: 0o40755, uid: 1234, gid: 2345 });
    expect(await readdir(join(directory, 'a/b'))).toEqual(['c']);
  });

  test('fills an existing file in place: same inode and mode, given to the owner', async () => {
    const path = join(directory, 'f');
    await writeFile(path, 'something rather long', { mode: 0o640 });
    const before = await stat(path);
    await write(path, 'short');
    const after = await stat(path);
    expect(await readFile(path, 'utf8')).toBe('short');
    expect({ ino: after.ino, mode: after.mode, uid: after.uid }).toEqual({
      ino: before.ino,
      mode: before.mode,
      uid: 1234,
    });
    await write(path, 'x'.repeat(300_000));
    expect((await stat(path)).size).toBe(300_000);
    await write(path, '');
    expect((await stat(path)).size).toBe(0);
  });

  test.each([524_288, 524_289, 5_000_001, 9_437_184])('%i bytes are exactly those', async (size) => {
    const path = join(directory, 'long');
    for (const content of [randomBytes(size), randomBytes(size)]) {
      expect(await write(path, content)).toEqual({ size: BigInt(size) });
      expect(content.equals(await readFile(path))).toBe(true);
      expect((await stat(path)).blocks * 512).toBeLessThan(size + 65_536);
    }
  });

  test('writes through links, even to what does not exist yet', async () => {
    await symlink('target', join(directory, 'link'));
    await symlink(join(directory, 'link'), join(directory, 'link2'));
    await write(join(directory, 'link2'), 'one');
    expect(await readFile(join(directory, 'target'), 'utf8')).toBe('one');
    await write(join(directory, 'link'), 'two');
    expect(await readFile(join(directory, 'target'), 'utf8')).toBe('two');
    await symlink('loop', join(directory, 'loop'));
    await expect(write(join(directory, 'loop'), 'x')).rejects.toMatchObject(status('INVALID'));
  });

  test('replaces the attributes of our name space and leaves the others', async () => {
    const path = join(directory, 'f');
    await write(path, '1', {
      xattrs: new Map([
        ['one', Buffer.from('1')],
        ['two', Buffer.from('2')],
      ]),
    });
    await sh(agent, `setfattr -n user.mine -v keep ${path} || true`);
    await write(path, '2', {
      xattrs: new Map([
        ['two', Buffer.from('zwei')],
        ['three', Buffer.from('')],
      ]),
    });
    const { xattrs } = await agent.stat(path);
    expect([...xattrs].map(([name, value]) => [name, Buffer.from(value).toString()]).sort()).toEqual([
      ['three', ''],
      ['two', 'zwei'],
    ]);
  });

  test('without space: the status, the target untouched, nothing left', async () => {
    const small = join(guest.directory, 'small');
    await write(join(small, 'old'), 'before');
    const big = randomBytes(2_000_000);
    await expect(write(join(small, 'old'), big)).rejects.toMatchObject({ code: 'no_space' });
    await expect(write(join(small, 'new'), big)).rejects.toMatchObject({ code: 'no_space' });
    expect((await read(join(small, 'old'))).toString()).toBe('before');
    // Staged it fits, a second time it does not: noticed before the target is touched.
    await expect(write(join(small, 'old'), big.subarray(0, 700_000))).rejects.toMatchObject({ code: 'no_space' });
    expect((await read(join(small, 'old'))).toString()).toBe('before');
    const { entries } = await agent.listDir(small, { depth: 1, max: 10 });
    expect(entries.map(({ path }) => path)).toEqual([join(small, 'old')]);
    expect(await write(join(small, 'new'), big.subarray(0, 700_000))).toEqual({ size: 700_000n });
    await agent.remove(join(small, 'new'));
  });

  test('given up in the middle leaves nothing, and no worker', async () => {
    for (let index = 0; index < 10; index++) {
      const controller = new AbortController();
      const upload = agent.writeFile(
        { path: join(directory, 'deep/half'), uid: 0, gid: 0, mode: 0o644, xattrs: new Map() },
        (async function* () {
          for (let chunk = 0; ; chunk++) {
            if (chunk === index) controller.abort();
            yield Buffer.alloc(50_000);
          }
        })(),
        controller.signal,
      );
      await expect(upload).rejects.toMatchObject({ code: 'canceled' });
    }
    const names = async () => (await agent.listDir(directory, { depth: 3, max: 10 })).entries.map(({ path }) => path);
    await expect.poll(names).not.toContain(join(directory, 'deep/half'));
    const helpers = async () => (await readFile(`/proc/${guest.pid}/task/${guest.pid}/children`, 'utf8')).trim();
    await expect.poll(helpers).toBe('');
  });

  test('refuses directories and special files', async () => {
    await sh(agent, `mkfifo ${directory}/fifo`);
    await expect(write(directory, 'x')).rejects.toMatchObject(status('IS_DIRECTORY'));
    await expect(write(`${directory}/new/`, 'x')).rejects.toMatchObject(status('IS_DIRECTORY'));
    await expect(write(join(directory, 'fifo'), 'x')).rejects.toMatchObject(status('NOT_REGULAR'));
    await writeFile(join(directory, 'file'), '');
    await expect(write(join(directory, 'file/below'), 'x')).rejects.toMatchObject(status('NOT_DIRECTORY'));
    await expect(write('relative', 'x')).rejects.toMatchObject(status('INVALID'));
  });
});

describe('read-file', () => {
  test('reads ranges, files without a size, and through links', async () => {
    const content = randomBytes(500_000);
    await writeFile(join(directory, 'f'), content);
    await symlink('f', join(directory, 'link'));
    expect(await read(join(directory, 'link'))).toEqual(content);
    expect(await read(join(directory, 'f'), { offset: 499_990n, length: 100n })).toEqual(content.subarray(499_990));
    expect(await read(join(directory, 'f'), { offset: 5n, length: 7n })).toEqual(content.subarray(5, 12));
    expect(await read(join(directory, 'f'), { offset: 900_000n, length: 7n })).toHaveLength(0);
    expect((await read('/proc/self/status')).toString()).toMatch(/^Name:/);
    expect((await agent.readFile(join(directory, 'link'))).entry).toMatchObject({ type: 'file', size: 500_000n });
  });

  test('refuses a FIFO at once, and its writer does not notice', async () => {
    await sh(agent, `mkfifo ${directory}/fifo`);
    const writer = await start(agent, ['sh', '-c', `echo survived > ${directory}/fifo`]);
    await expect(read(join(directory, 'fifo'))).rejects.toMatchObject(status('NOT_REGULAR'));
    expect((await sh(agent, `cat ${directory}/fifo`)).stdout).toBe('survived\n');
    expect(await finish(writer)).toMatchObject({ code: 0, signal: 0 });
    await expect(read('/dev/zero')).rejects.toMatchObject(status('NOT_REGULAR'));
    await expect(read(directory)).rejects.toMatchObject(status('IS_DIRECTORY'));
    await expect(read(join(directory, 'missing'))).rejects.toMatchObject(status('NOT_FOUND'));
  });

  test('a file that shrinks while it is read ends early instead of hanging', async () => {
    await writeFile(join(directory, 'f'), randomBytes(3_000_000));
    const { body } = await agent.readFile(join(directory, 'f'));
    let received = 0;
    for await (const chunk of body) {
      if (received === 0) await writeFile(join(directory, 'f'), '');
      received += chunk.length;
    }
    expect(received).toBeLessThan(3_000_000);
  });
});

describe('directories', () => {
  test('are listed in pre-order, sorted bytewise, links not followed, cut at the maximum', async () => {
    await mkdir(join(directory, 'b/nested'), { recursive: true });
    for (const name of ['a', 'B', 'b/z', 'b/nested/deep', 'é']) await writeFile(join(directory, name), name);
    await symlink('b', join(directory, 'c'));
    await symlink('nowhere', join(directory, 'd'));
    const paths = async (depth: number, max: number) =>
      (await agent.listDir(directory, { depth, max })).entries.map(({ path }) => path.slice(directory.length + 1));
    expect(await paths(1, 100)).toEqual(['B', 'a', 'b', 'c', 'd', 'é']);
    expect(await paths(3, 100)).toEqual(['B', 'a', 'b', 'b/nested', 'b/nested/deep', 'b/z', 'c', 'd', 'é']);
    expect(await paths(3, 4)).toEqual(['B', 'a', 'b', 'b/nested']);
    expect(await agent.stat(join(directory, 'c'))).toMatchObject({
      type: 'symlink',
      link: { target: join(directory, 'b'), type: 'directory' },
    });
    expect(await agent.stat(join(directory, 'd'))).toMatchObject({
      link: { target: join(directory, 'd'), type: 'unknown' },
    });
    const through = await agent.listDir(join(directory, 'c'), { depth: 1, max: 10 });
    expect(through.entries.map(({ path }) => path)).toEqual([join(directory, 'c/nested'), join(directory, 'c/z')]);
    await expect(agent.listDir(join(directory, 'a'), { depth: 1, max: 10 })).rejects.toMatchObject(
      status('NOT_DIRECTORY'),
    );
  });

  test('are made with parents; only what is new gets the owner', async () => {
    await mkdir(join(directory, 'old'));
    const owner = { uid: 1234, gid: 2345, mode: 0o711 };
    expect(await agent.makeDir(join(directory, 'old/new/deep'), owner)).toEqual({ created: true });
    expect(await agent.makeDir(join(directory, 'old/new/deep'), owner)).toEqual({ created: false });
    expect(await stat(join(directory, 'old'))).toMatchObject({ uid: 0 });
    expect(await stat(join(directory, 'old/new'))).toMatchObject({ uid: 1234, gid: 2345, mode: 0o40711 });
    await writeFile(join(directory, 'file'), '');
    await expect(agent.makeDir(join(directory, 'file'), owner)).rejects.toMatchObject(status('NOT_DIRECTORY'));
  });

  test('are renamed over nothing and over files, with parents made', async () => {
    const owner = { uid: 1234, gid: 2345 };
    await writeFile(join(directory, 'f'), 'f');
    await writeFile(join(directory, 'g'), 'g');
    await agent.rename(join(directory, 'f'), join(directory, 'g'), owner);
    await agent.rename(join(directory, 'g'), join(directory, 'new/place'), owner);
    expect(await readFile(join(directory, 'new/place'), 'utf8')).toBe('f');
    await expect(agent.rename(join(directory, 'f'), join(directory, 'x/y'), owner)).rejects.toMatchObject(
      status('NOT_FOUND'),
    );
    expect(await readdir(directory)).toEqual(['new']);
  });

  test('are removed with everything in them, but not what links name', async () => {
    await mkdir(join(directory, 'outside'));
    await writeFile(join(directory, 'outside/kept'), '');
    await sh(
      agent,
      `cd ${directory} && mkdir -p tree/a/b/c && touch tree/a/f tree/a/b/c/g && ln -s ../outside tree/link && chmod 0 tree/a/b`,
    );
    expect(await agent.remove(join(directory, 'tree'))).toEqual({ removed: true });
    expect(await agent.remove(join(directory, 'tree'))).toEqual({ removed: false });
    expect(await readdir(join(directory, 'outside'))).toEqual(['kept']);
    await symlink('outside', join(directory, 'link'));
    expect(await agent.remove(join(directory, 'link'))).toEqual({ removed: true });
    expect(await readdir(join(directory, 'outside'))).toEqual(['kept']);
  });

  test('deeper than any path is long are removed too', async () => {
    const script = `import os\nos.chdir('${directory}')\nfor i in range(300):\n os.mkdir('a'*40)\n os.chdir('a'*40)\nopen('f','w')`;
    expect(await finish(await start(agent, ['python3', '-c', script]))).toMatchObject({ code: 0 });
    expect(await agent.remove(join(directory, 'a'.repeat(40)))).toEqual({ removed: true });
  });
});

describe('compose-file', () => {
  test('joins files in order and removes them, even when one is the destination', async () => {
    for (const name of ['a', 'b', 'c']) await writeFile(join(directory, name), name.repeat(3));
    const request = { path: join(directory, 'a'), uid: 1234, gid: 2345, mode: 0o644 };
    const sources = ['b', 'a', 'c'].map((name) => join(directory, name));
    expect(await agent.composeFile(sources, request)).toEqual({ size: 9n });
    expect(await readFile(join(directory, 'a'), 'utf8')).toBe('bbbaaaccc');
    expect(await readdir(directory)).toEqual(['a']);
    await expect(agent.composeFile([join(directory, 'a'), join(directory, 'no')], request)).rejects.toMatchObject(
      status('NOT_FOUND'),
    );
    expect(await readFile(join(directory, 'a'), 'utf8')).toBe('bbbaaaccc');
  });
});

describe('what storage does to the others', () => {
  /** The worst of some round trips through a running cat, milliseconds. */
  async function worstEcho(rounds: number): Promise<number> {
    const cat = await start(agent, ['cat'], { stdin: true });
    let arrived: () => void = () => {};
    cat.onOutput(() => arrived());
    let worst = 0;
    for (let round = 0; round < rounds; round++) {
      const { promise, resolve } = Promise.withResolvers<void>();
      arrived = resolve;
      const before = performance.now();
      await cat.writeStdin(Buffer.from('x'));
      await promise;
      worst = Math.max(worst, performance.now() - before);
    }
    await cat.closeStdin();
    await cat.exit;
    return worst;
  }

  test('a recursive remove of 50 000 files delays no echo by more than 100 ms', { timeout: 120_000 }, async () => {
    await sh(
      agent,
      `cd ${directory} && for d in 1 2 3 4 5; do mkdir -p tree/$d && (cd tree/$d && seq 10000 | xargs touch); done`,
    );
    const idle = await worstEcho(30);
    let removing = true;
    const removal = agent.remove(join(directory, 'tree')).finally(() => {
      removing = false;
    });
    let worst = 0;
    let rounds = 0;
    while (removing) {
      worst = Math.max(worst, await worstEcho(5));
      rounds++;
    }
    expect(await removal).toEqual({ removed: true });
    expect(rounds).toBeGreaterThan(0);
    expect(worst).toBeLessThan(idle + 100);
  });

  test('more stalled downloads than there are transfers leave spawn, ping and other files alone', async () => {
    await writeFile(join(directory, 'big'), randomBytes(2_000_000));
    const given = new AbortController();
    const open = () => agent.readFile(join(directory, 'big'), undefined, given.signal);
    const running = await Promise.all(Array.from({ length: 24 }, open));
    const waiting = Array.from({ length: 10 }, open);
    for (const download of waiting) download.catch(() => {});
    await agent.ping(AbortSignal.timeout(5000));
    expect(await sh(agent, 'echo alive')).toMatchObject({ stdout: 'alive\n' });
    expect(await agent.stat(join(directory, 'big'), AbortSignal.timeout(5000))).toMatchObject({ size: 2_000_000n });
    given.abort();
    for (const { body } of running) await body[Symbol.asyncIterator]().return?.();
    await Promise.allSettled(waiting);
    expect((await read(join(directory, 'big'))).length).toBe(2_000_000);
  });

  test('eight workers stuck in a dead file system: others wait, spawn and ping do not, and RESET frees them', async () => {
    const mount = join(directory, 'dead');
    await mkdir(mount);
    const script = `
import ctypes, os, time
fd = os.open('/dev/fuse', os.O_RDWR)
options = f'fd={fd},rootmode=40000,user_id=0,group_id=0'.encode()
assert ctypes.CDLL(None).mount(b'dead', b'${mount}', b'fuse', 0, options) == 0
print('mounted', flush=True)
time.sleep(1000)`;
    const server = await start(agent, ['python3', '-c', script]);
    const mounted = Promise.withResolvers<void>();
    server.onOutput(() => mounted.resolve());
    await mounted.promise;
    const given = new AbortController();
    const stuck = Array.from({ length: 8 }, () => agent.stat(join(mount, 'x'), given.signal));
    for (const call of stuck) call.catch(() => {});
    const ninth = agent.stat(directory);
    await agent.ping(AbortSignal.timeout(5000));
    expect(await sh(agent, 'echo alive')).toMatchObject({ stdout: 'alive\n' });
    expect(await Promise.race([ninth.then(() => 'answered'), agent.ping().then(() => 'waits')])).toBe('waits');
    given.abort();
    expect(await ninth).toMatchObject({ type: 'directory' });
    await expect(agent.stat(join(mount, 'x'), AbortSignal.timeout(100))).rejects.toMatchObject({
      code: 'deadline_exceeded',
    });
    await server.signal(9);
    await server.exit;
    await sh(agent, `umount -l ${mount}`);
  });
});
