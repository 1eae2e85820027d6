import { mkdir, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Agent, GuestEntry } from '@agentenv/agent';
import { createSeededRandom } from '@agentenv/core/testing';
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

/** Every page of a listing. */
async function pagesOf(path: string, depth: number, max: number, between: () => Promise<void> = async () => {}) {
  const pages: (readonly GuestEntry[])[] = [];
  let after: Uint8Array | undefined;
  do {
    if (after !== undefined) await between();
    const page = await agent.listDir(path, { depth, max, ...(after === undefined ? {} : { after }) });
    pages.push(page.entries);
    after = page.next;
  } while (after !== undefined);
  return pages;
}

const below = (entries: Iterable<GuestEntry>): string[] =>
  [...entries].map(({ path }) => path.slice(directory.length + 1));

async function namesOf(depth: number, max: number, between?: () => Promise<void>): Promise<string[]> {
  return below((await pagesOf(directory, depth, max, between)).flat());
}

describe('pages of a listing', () => {
  test('12 000 entries that fill several frames come once each, in order', async () => {
    await sh(agent, `cd ${directory} && seq -f 'name-that-is-rather-long-so-that-few-fit-%06g' 12000 | xargs touch`);
    const pages = await pagesOf(directory, 1, 0);
    expect(pages.length).toBeGreaterThan(1);
    const names = below(pages.flat());
    expect(names).toHaveLength(12_000);
    expect(names).toEqual(names.toSorted());
    expect(new Set(names).size).toBe(12_000);
  });

  test('whatever the size of the pages, a tree is the same', async () => {
    await sh(
      agent,
      `cd ${directory} && mkdir -p a/b/c a/b.d a.b empty && touch a/1 a/b/2 a/b/c/3 a/b.d/4 a.b/5 z && ln -s a link`,
    );
    for (const depth of [1, 2, 3, 9]) {
      const whole = await namesOf(depth, 0);
      for (const max of [1, 2, 3, 5, 100]) {
        const pages = await pagesOf(directory, depth, max);
        expect(below(pages.flat()), `depth ${depth}, ${max} a page`).toEqual(whole);
        expect(pages.every(({ length }) => length <= max)).toBe(true);
      }
    }
    expect(await namesOf(9, 4)).toEqual(
      'a a/1 a/b a/b/2 a/b/c a/b/c/3 a/b.d a/b.d/4 a.b a.b/5 empty link z'.split(' '),
    );
  });

  test('names that are no UTF-8 do not stop them', async () => {
    const script = `import os\nfor i in range(40): open(b'${directory}/' + bytes([0x80 + i, 0xff]), 'w')`;
    expect(await finish(await start(agent, ['python3', '-c', script]))).toMatchObject({ code: 0 });
    expect(await namesOf(1, 7)).toHaveLength(40);
  });

  test('what is made and removed meanwhile shifts nothing', async () => {
    const stays = Array.from({ length: 60 }, (_, index) => `stays-${String(index).padStart(2, '0')}`);
    for (const name of stays) await writeFile(join(directory, name), '');
    const random = createSeededRandom(20_260_303);
    const names = await namesOf(2, 7, async () => {
      const number = String(random.below(60)).padStart(2, '0');
      await writeFile(join(directory, `stays-${number}-and-comes`), '');
      await rm(join(directory, `stays-${String(random.below(60)).padStart(2, '0')}-and-comes`), { force: true });
    });
    expect(names.filter((name) => !name.endsWith('comes'))).toEqual(stays);
  });

  test('go on when the place they stopped at is gone, or is a directory no more', async () => {
    await mkdir(join(directory, 'b/inner'), { recursive: true });
    for (const name of ['a', 'b/inner/x', 'b/y', 'c']) await writeFile(join(directory, name), '');
    const first = await agent.listDir(directory, { depth: 9, max: 3 });
    expect(below(first.entries)).toEqual(['a', 'b', 'b/inner']);
    const rest = async () =>
      below((await agent.listDir(directory, { depth: 9, max: 0, after: first.next ?? expect.fail() })).entries);
    expect(await rest()).toEqual(['b/inner/x', 'b/y', 'c']);
    await rm(join(directory, 'b/inner'), { recursive: true });
    expect(await rest()).toEqual(['b/y', 'c']);
    await rm(join(directory, 'b'), { recursive: true });
    await symlink('/', join(directory, 'b'));
    expect(await rest()).toEqual(['c']);
  });

  test('any bytes as a cursor are an answer', async () => {
    await mkdir(join(directory, 'a/b'), { recursive: true });
    for (const after of ['/', '//', 'a/', 'a//b', '..', '../..', '\0', 'a\0b', 'x'.repeat(5000), '/etc/passwd']) {
      const { entries } = await agent.listDir(directory, { depth: 3, max: 0, after: Buffer.from(after) });
      expect(below(entries).every((name) => name === 'a' || name === 'a/b')).toBe(true);
    }
  });

  test('a tree deeper than any path is long is listed as far as paths reach', async () => {
    const script = `import os\nos.chdir('${directory}')\nfor i in range(900):\n os.mkdir('deep-dir')\n os.chdir('deep-dir')`;
    expect(await finish(await start(agent, ['python3', '-c', script]))).toMatchObject({ code: 0 });
    const entries = (await pagesOf(directory, 0xffff, 0)).flat();
    const longest = Math.max(...entries.map(({ path }) => path.length));
    expect(longest).toBeGreaterThanOrEqual(4096);
    expect(longest).toBeLessThan(4096 + 256);
    expect(await agent.remove(join(directory, 'deep-dir'))).toEqual({ removed: true });
  });

  test('tells the kinds of what is not a file, a directory or a link', async () => {
    const script = `import os, socket, stat
os.mkfifo('${directory}/fifo')
os.mknod('${directory}/character', stat.S_IFCHR | 0o600, os.makedev(1, 3))
os.mknod('${directory}/block', stat.S_IFBLK | 0o600, os.makedev(7, 200))
os.chdir('${directory}')
socket.socket(socket.AF_UNIX).bind('socket')`;
    expect(await finish(await start(agent, ['python3', '-c', script]))).toMatchObject({ code: 0, stderr: '' });
    const { entries } = await agent.listDir(directory, { depth: 1, max: 10 });
    expect(entries.map(({ path, type }) => [path.slice(directory.length + 1), type])).toEqual([
      ['block', 'block-device'],
      ['character', 'character-device'],
      ['fifo', 'fifo'],
      ['socket', 'socket'],
    ]);
  });
});
