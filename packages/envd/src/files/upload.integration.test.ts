import { createHash, randomBytes } from 'node:crypto';
import { chmod, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { gzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type FilesDriver, filesUrl, json, OCTETS, startFilesDriver } from '../testing/files-driver.ts';
import { randomChunks } from './testing/random-chunks.ts';

let files: FilesDriver;

beforeAll(async () => {
  files = await startFilesDriver();
});
afterAll(async () => {
  await files[Symbol.asyncDispose]();
});
afterEach(async () => {
  await files.reset();
});

async function runInGuest(script: string): Promise<void> {
  const process = await files.envd.guest.agent.spawn({
    user: 'root',
    argv: ['/bin/sh', '-c', script],
    env: {},
    cwd: '/',
    defaultCwd: '',
    stdin: false,
    tag: '',
    config: new Uint8Array(),
    killAfterMs: 10_000,
  });
  process.onOutput(() => undefined);
  expect(await process.exit).toMatchObject({ code: 0, signal: 0 });
}

describe('POST /files with plain bytes', () => {
  test('writes the file for the user, with missing parents, and tells where', async () => {
    const answer = await files.put(files.path('a/b/c.txt'), 'content');
    expect(answer.status).toBe(200);
    expect(json(answer)).toEqual([{ name: 'c.txt', path: files.path('a/b/c.txt'), type: 'file' }]);
    expect(await readFile(files.host('a/b/c.txt'), 'utf8')).toBe('content');
    expect((await stat(files.host('a/b/c.txt'))).mode & 0o777).toBe(0o644);
    expect((await stat(files.host('a/b'))).mode & 0o777).toBe(0o755);
  });

  test('belongs to the user that is named', async () => {
    await files.envd.request(filesUrl({ path: files.path('theirs/file'), username: 'daemon' }), {
      method: 'POST',
      headers: OCTETS,
      body: 'x',
    });
    expect(await stat(files.host('theirs/file'))).toMatchObject({ uid: 1, gid: 1 });
    expect(await stat(files.host('theirs'))).toMatchObject({ uid: 1, gid: 1 });
  });

  test('overwriting keeps the inode and the mode and leaves nothing of the old content', async () => {
    await writeFile(files.host('a'), 'a long old content');
    await chmod(files.host('a'), 0o600);
    const { ino } = await stat(files.host('a'));
    await files.put(files.path('a'), 'new');
    expect(await stat(files.host('a'))).toMatchObject({ ino, size: 3 });
    expect((await stat(files.host('a'))).mode & 0o777).toBe(0o600);
  });

  test('overwriting gives the file to the user of the request, and nothing above it', async () => {
    await files.put(files.path('theirs/a'), 'of the default user');
    const { uid } = await stat(files.host('theirs/a'));
    expect(uid).not.toBe(1);
    await files.envd.request(filesUrl({ path: files.path('theirs/a'), username: 'daemon' }), {
      method: 'POST',
      headers: OCTETS,
      body: 'x',
    });
    expect(await stat(files.host('theirs/a'))).toMatchObject({ uid: 1, gid: 1, size: 1 });
    expect(await stat(files.host('theirs'))).toMatchObject({ uid });
  });

  test('64 MiB of random bytes, chunked, come back equal', async () => {
    const bytes = randomBytes(64 * 1024 * 1024);
    expect(await files.put(files.path('big'), randomChunks(bytes, [65_536]))).toMatchObject({ status: 200 });
    const answer = await files.get({ path: files.path('big') });
    expect(createHash('sha256').update(answer.body).digest('hex')).toBe(
      createHash('sha256').update(bytes).digest('hex'),
    );
  });

  test('gzip is undone, in one piece or many', async () => {
    const text = 'compressed\n'.repeat(50_000);
    expect(await files.put(files.path('a'), gzipSync(text), { 'content-encoding': 'gzip' })).toMatchObject({
      status: 200,
    });
    expect(await readFile(files.host('a'), 'utf8')).toBe(text);
    await files.put(files.path('b'), randomChunks(gzipSync(text), [7, 100]), { 'content-encoding': 'gzip' });
    expect(await readFile(files.host('b'), 'utf8')).toBe(text);
  });

  test('an empty body is an empty file', async () => {
    expect(await files.put(files.path('empty'), '')).toMatchObject({ status: 200 });
    expect(await readFile(files.host('empty'))).toHaveLength(0);
  });

  test('metadata become attributes, are told, replaced as a whole, and cleared by a write without any', async () => {
    const answer = await files.put(files.path('a'), 'x', { 'X-Metadata-Author': 'Jo', 'x-metadata-empty': '' });
    expect(json(answer)).toEqual([
      { name: 'a', path: files.path('a'), type: 'file', metadata: { author: 'Jo', empty: '' } },
    ]);
    expect([...(await files.envd.guest.agent.stat(files.path('a'))).xattrs.keys()].sort()).toEqual(['author', 'empty']);
    await files.put(files.path('a'), 'x', { 'x-metadata-other': '1' });
    expect([...(await files.envd.guest.agent.stat(files.path('a'))).xattrs.keys()]).toEqual(['other']);
    await files.put(files.path('a'), 'x');
    expect((await files.envd.guest.agent.stat(files.path('a'))).xattrs.size).toBe(0);
  });

  test('attributes that a program of the sandbox set are metadata too; others are not', async () => {
    await files.put(files.path('a'), 'x');
    const script = `import os
os.setxattr('${files.path('a')}', 'user.e2b.by-hand', b'yes')
os.setxattr('${files.path('a')}', 'user.other', b'no')`;
    await runInGuest(`python3 -c "${script}"`);
    expect([...(await files.envd.guest.agent.stat(files.path('a'))).xattrs.keys()]).toEqual(['by-hand']);
    await files.put(files.path('a'), 'y', { 'x-metadata-new': '1' });
    await runInGuest(`python3 -c "import os; assert os.getxattr('${files.path('a')}', 'user.other') == b'no'"`);
    expect([...(await files.envd.guest.agent.stat(files.path('a'))).xattrs.keys()]).toEqual(['new']);
  });

  test('a file system without attributes takes the file without its metadata', async () => {
    await runInGuest('mount -t ramfs ramfs /mnt/work');
    try {
      expect(await files.put(files.path('a'), 'x', { 'x-metadata-k': 'v' })).toMatchObject({ status: 200 });
      expect((await files.envd.guest.agent.stat(files.path('a'))).xattrs.size).toBe(0);
      expect((await files.get({ path: files.path('a') })).body.toString()).toBe('x');
    } finally {
      await runInGuest('umount -l /mnt/work');
    }
  });

  test.each([
    ['no path', {}, OCTETS, 'x', 400, /path query parameter is required/],
    ['an empty path', { path: '' }, OCTETS, 'x', 400, /path query parameter is required/],
    [
      'another content type',
      { path: '/tmp/x' },
      { 'content-type': 'text/plain' },
      'x',
      400,
      'unsupported content type: text/plain',
    ],
    ['no content type', { path: '/tmp/x' }, {}, 'x', 400, /unsupported content type/],
    ['a directory', { path: '/tmp' }, OCTETS, 'x', 400, /'\/tmp' is a directory/],
    ['a file as parent', { path: '/etc/passwd/x' }, OCTETS, 'x', 400, /not a directory/],
    ['a device', { path: '/dev/null' }, OCTETS, 'x', 400, /not a regular file/],
    ['an unknown user', { path: '/tmp/x', username: 'nosuchuser' }, OCTETS, 'x', 401, /error looking up user/],
    [
      'a broken gzip',
      { path: '/tmp/aenv-x' },
      { ...OCTETS, 'content-encoding': 'gzip' },
      'no gzip',
      400,
      /not valid gzip/,
    ],
    [
      'a cut-off gzip',
      { path: '/tmp/aenv-x' },
      { ...OCTETS, 'content-encoding': 'gzip' },
      gzipSync(randomBytes(5000)).subarray(0, 2000),
      400,
      /not valid gzip/,
    ],
    [
      'an unknown encoding',
      { path: '/tmp/x' },
      { ...OCTETS, 'content-encoding': 'br' },
      'x',
      400,
      /unsupported content encoding: br/,
    ],
    [
      'an oversized metadata key',
      { path: '/tmp/x' },
      { ...OCTETS, [`x-metadata-${'k'.repeat(247)}`]: 'v' },
      'x',
      400,
      /longer than 246 bytes/,
    ],
  ])('%s is refused with a reason', async (_what, query, headers, body, status, message) => {
    const answer = await files.envd.request(filesUrl(query as Record<string, string>), {
      method: 'POST',
      headers: headers as Record<string, string>,
      body,
    });
    expect(json(answer)).toEqual({ code: status, message: expect.stringMatching(message) });
    expect(answer.status).toBe(status);
  });

  test('a client that goes away in the middle leaves the old file and no litter', async () => {
    await writeFile(files.host('a'), 'old');
    const abort = new AbortController();
    async function* body() {
      yield randomBytes(1_000_000);
      abort.abort();
      yield randomBytes(1_000_000);
    }
    await expect(
      files.envd.request(filesUrl({ path: files.path('a') }), {
        method: 'POST',
        headers: OCTETS,
        body: body(),
        signal: abort.signal,
      }),
    ).rejects.toThrow();
    await expect.poll(() => files.envd.sockets.size).toBe(0);
    expect(await readFile(files.host('a'), 'utf8')).toBe('old');
    await expect.poll(() => readdir(files.outside)).toEqual(['a']);
  });

  test('a full file system answers 507 and leaves the target as it was', async () => {
    await runInGuest('mount -t tmpfs -o size=1m tmpfs /mnt/work');
    try {
      await files.put(files.path('a'), 'old');
      const answer = await files.put(files.path('a'), randomChunks(randomBytes(3 * 1024 * 1024), [65_536]));
      expect(answer.status).toBe(507);
      expect(json(answer)).toMatchObject({ code: 507, message: expect.stringMatching(/no space left/) });
      expect((await files.get({ path: files.path('a') })).body.toString()).toBe('old');
      const { entries } = await files.envd.guest.agent.listDir(files.directory, { depth: 1, max: 10 });
      expect(entries.map((entry) => entry.path)).toEqual([files.path('a')]);
    } finally {
      await runInGuest('umount -l /mnt/work');
    }
  });
});
