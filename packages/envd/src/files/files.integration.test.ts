import { createHash, randomBytes } from 'node:crypto';
import { chmod, mkdir, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gunzipSync, gzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type Answer, type EnvdFixture, type RequestOptions, startEnvd, TOKEN } from '../testing/envd-fixture.ts';
import { signFileRequest } from './signature.ts';
import { randomChunks } from './testing/random-chunks.ts';

let envd: EnvdFixture;
/** The test's directory in the guest, and the same one on this machine. */
const directory = '/mnt/work';
let outside: string;

beforeAll(async () => {
  envd = await startEnvd();
});
afterAll(async () => {
  await envd[Symbol.asyncDispose]();
});
beforeEach(async () => {
  outside = join(envd.shared, 'work');
  await mkdir(outside);
});
afterEach(async () => {
  await rm(outside, { recursive: true, force: true });
});

function files(query: Record<string, string>): string {
  return `/files?${new URLSearchParams(query)}`;
}

function get(query: Record<string, string>, headers: RequestOptions['headers'] = {}): Promise<Answer> {
  return envd.request(files(query), { headers });
}

const OCTETS = { 'content-type': 'application/octet-stream' };

function put(path: string, body: NonNullable<RequestOptions['body']>, headers: RequestOptions['headers'] = {}) {
  return envd.request(files({ path }), { method: 'POST', headers: { ...OCTETS, ...headers }, body });
}

async function postForm(query: Record<string, string>, form: FormData, headers: RequestOptions['headers'] = {}) {
  const encoded = new Response(form);
  return await envd.request(files(query), {
    method: 'POST',
    headers: { 'content-type': encoded.headers.get('content-type') ?? '', ...headers },
    body: new Uint8Array(await encoded.arrayBuffer()),
  });
}

function json({ body }: Answer): unknown {
  return JSON.parse(body.toString('utf8'));
}

function path(name: string): string {
  return `${directory}/${name}`;
}

function host(name: string): string {
  return join(outside, name);
}

async function runInGuest(script: string): Promise<void> {
  const process = await envd.guest.agent.spawn({
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

describe('GET /files', () => {
  test('answers the bytes, their length, type and name', async () => {
    await writeFile(host('naïve.txt'), 'hello');
    const answer = await get({ path: path('naïve.txt') });
    expect(answer.status).toBe(200);
    expect(answer.body.toString()).toBe('hello');
    expect(answer.headers).toMatchObject({
      'content-length': '5',
      'content-type': 'text/plain; charset=utf-8',
      'content-disposition': `inline; filename="na_ve.txt"; filename*=UTF-8''na%C3%AFve.txt`,
    });
    expect(answer.headers.vary).toContain('Accept-Encoding');
    expect(answer.headers).not.toHaveProperty('content-encoding');
  });

  test('an empty file has length 0, whatever encoding is accepted', async () => {
    await writeFile(host('empty'), '');
    const answer = await get({ path: path('empty') }, { 'accept-encoding': 'gzip, deflate' });
    expect(answer).toMatchObject({ status: 200, headers: { 'content-length': '0' } });
    expect(answer.headers).not.toHaveProperty('content-encoding');
  });

  test('text is compressed for those who accept it, random bytes are not', async () => {
    const text = 'line\n'.repeat(100_000);
    await writeFile(host('a.txt'), text);
    await writeFile(host('random'), randomBytes(100_000));
    const compressed = await get({ path: path('a.txt') }, { 'accept-encoding': 'gzip, deflate' });
    expect(compressed.headers['content-encoding']).toBe('gzip');
    expect(gunzipSync(compressed.body).toString()).toBe(text);
    expect((await get({ path: path('random') }, { 'accept-encoding': 'gzip' })).headers).not.toHaveProperty(
      'content-encoding',
    );
    const forced = await get({ path: path('random') }, { 'accept-encoding': 'gzip, identity;q=0' });
    expect(gunzipSync(forced.body)).toEqual(await readFile(host('random')));
  });

  test('406 when nothing we send is accepted', async () => {
    await writeFile(host('a'), 'x');
    const answer = await get({ path: path('a') }, { 'accept-encoding': 'br, identity;q=0' });
    expect(answer.status).toBe(406);
    expect(json(answer)).toMatchObject({ code: 406 });
  });

  test('follows links and reads files of procfs, whose size is a lie', async () => {
    await writeFile(host('target'), 'linked');
    await symlink(path('target'), host('link'));
    expect((await get({ path: path('link') })).body.toString()).toBe('linked');
    const answer = await get({ path: '/proc/cpuinfo' });
    expect(answer.status).toBe(200);
    expect(answer.body.toString()).toContain('processor');
    expect((await get({ path: '/sys/kernel/mm/transparent_hugepage/enabled' })).body.toString()).toContain('never');
  });

  test.each([
    ['a missing file', () => ({ path: path('missing') }), 404, /^path '.*missing' does not exist$/],
    ['a directory', () => ({ path: directory }), 400, /is a directory/],
    ['a device', () => ({ path: '/dev/zero' }), 400, /is not a regular file/],
    ['an unknown user', () => ({ path: '/x', username: 'nosuchuser' }), 401, /^error looking up user 'nosuchuser': /],
    ['an empty user', () => ({ path: '/x', username: '' }), 401, /^error looking up user '': /],
    ["another user's home", () => ({ path: '~daemon/x' }), 400, /home of another user/],
    ['a NUL byte', () => ({ path: '/a\0b' }), 400, /NUL/],
  ])('%s is a clear error', async (_what, query, status, message) => {
    const answer = await get(query());
    expect(answer.status).toBe(status);
    expect(answer.headers['content-type']).toBe('application/json; charset=utf-8');
    expect(json(answer)).toEqual({ code: status, message: expect.stringMatching(message) });
  });

  test('HEAD answers the headers only', async () => {
    await writeFile(host('a'), 'hello');
    const answer = await envd.request(files({ path: path('a') }), { method: 'HEAD' });
    expect(answer).toMatchObject({ status: 200, headers: { 'content-length': '5' } });
    expect(answer.body).toHaveLength(0);
  });

  test('ranges and conditions', async () => {
    const bytes = randomBytes(300_000);
    await writeFile(host('a'), bytes);
    const whole = await get({ path: path('a') });
    expect(whole.headers['accept-ranges']).toBe('bytes');
    const part = await get({ path: path('a') }, { range: 'bytes=100000-199999', 'accept-encoding': 'gzip' });
    expect(part).toMatchObject({
      status: 206,
      headers: { 'content-range': 'bytes 100000-199999/300000', 'content-length': '100000' },
    });
    expect(part.body.equals(bytes.subarray(100_000, 200_000))).toBe(true);
    expect((await get({ path: path('a') }, { range: 'bytes=-5' })).body.equals(bytes.subarray(-5))).toBe(true);
    const outside = await get({ path: path('a') }, { range: 'bytes=300000-' });
    expect(outside).toMatchObject({ status: 416, headers: { 'content-range': 'bytes */300000' } });
    const { etag, 'last-modified': modified } = whole.headers;
    expect(await get({ path: path('a') }, { 'if-none-match': etag ?? '' })).toMatchObject({ status: 304 });
    expect(await get({ path: path('a') }, { 'if-modified-since': modified ?? '' })).toMatchObject({ status: 304 });
    expect(await get({ path: path('a') }, { 'if-match': '"other"' })).toMatchObject({ status: 412 });
    await writeFile(host('a'), 'changed');
    expect(await get({ path: path('a') }, { 'if-none-match': etag ?? '' })).toMatchObject({ status: 200 });
    const resumed = await get({ path: path('a') }, { range: 'bytes=1-', 'if-range': etag ?? '' });
    expect(resumed).toMatchObject({ status: 200 });
    expect(resumed.body.toString()).toBe('changed');
  });
});

describe('POST /files with plain bytes', () => {
  test('writes the file for the user, with missing parents, and tells where', async () => {
    const answer = await put(path('a/b/c.txt'), 'content');
    expect(answer.status).toBe(200);
    expect(json(answer)).toEqual([{ name: 'c.txt', path: path('a/b/c.txt'), type: 'file' }]);
    expect(await readFile(host('a/b/c.txt'), 'utf8')).toBe('content');
    expect((await stat(host('a/b/c.txt'))).mode & 0o777).toBe(0o644);
    expect((await stat(host('a/b'))).mode & 0o777).toBe(0o755);
  });

  test('belongs to the user that is named', async () => {
    await envd.request(files({ path: path('theirs/file'), username: 'daemon' }), {
      method: 'POST',
      headers: OCTETS,
      body: 'x',
    });
    expect(await stat(host('theirs/file'))).toMatchObject({ uid: 1, gid: 1 });
    expect(await stat(host('theirs'))).toMatchObject({ uid: 1, gid: 1 });
  });

  test('overwriting keeps the inode and the mode and leaves nothing of the old content', async () => {
    await writeFile(host('a'), 'a long old content');
    await chmod(host('a'), 0o600);
    const { ino } = await stat(host('a'));
    await put(path('a'), 'new');
    expect(await stat(host('a'))).toMatchObject({ ino, size: 3 });
    expect((await stat(host('a'))).mode & 0o777).toBe(0o600);
  });

  test('64 MiB of random bytes, chunked, come back equal, and the server does not keep them', async () => {
    const bytes = randomBytes(64 * 1024 * 1024);
    const before = process.memoryUsage().rss;
    expect(await put(path('big'), randomChunks(bytes, [65_536]))).toMatchObject({ status: 200 });
    expect(process.memoryUsage().rss - before).toBeLessThan(48 * 1024 * 1024);
    const answer = await get({ path: path('big') });
    expect(createHash('sha256').update(answer.body).digest('hex')).toBe(
      createHash('sha256').update(bytes).digest('hex'),
    );
  });

  test('gzip is undone, in one piece or many', async () => {
    const text = 'compressed\n'.repeat(50_000);
    expect(await put(path('a'), gzipSync(text), { 'content-encoding': 'gzip' })).toMatchObject({ status: 200 });
    expect(await readFile(host('a'), 'utf8')).toBe(text);
    await put(path('b'), randomChunks(gzipSync(text), [7, 100]), { 'content-encoding': 'gzip' });
    expect(await readFile(host('b'), 'utf8')).toBe(text);
  });

  test('an empty body is an empty file', async () => {
    expect(await put(path('empty'), '')).toMatchObject({ status: 200 });
    expect(await readFile(host('empty'))).toHaveLength(0);
  });

  test('metadata become attributes, are told, replaced as a whole, and cleared by a write without any', async () => {
    const answer = await put(path('a'), 'x', { 'X-Metadata-Author': 'Jo', 'x-metadata-empty': '' });
    expect(json(answer)).toEqual([{ name: 'a', path: path('a'), type: 'file', metadata: { author: 'Jo', empty: '' } }]);
    expect([...(await envd.guest.agent.stat(path('a'))).xattrs.keys()].sort()).toEqual(['author', 'empty']);
    await put(path('a'), 'x', { 'x-metadata-other': '1' });
    expect([...(await envd.guest.agent.stat(path('a'))).xattrs.keys()]).toEqual(['other']);
    await put(path('a'), 'x');
    expect((await envd.guest.agent.stat(path('a'))).xattrs.size).toBe(0);
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
    const answer = await envd.request(files(query as Record<string, string>), {
      method: 'POST',
      headers: headers as Record<string, string>,
      body,
    });
    expect(json(answer)).toEqual({ code: status, message: expect.stringMatching(message) });
    expect(answer.status).toBe(status);
  });

  test('a client that goes away in the middle leaves the old file and no litter', async () => {
    await writeFile(host('a'), 'old');
    const abort = new AbortController();
    async function* body() {
      yield randomBytes(1_000_000);
      abort.abort();
      yield randomBytes(1_000_000);
    }
    await expect(
      envd.request(files({ path: path('a') }), { method: 'POST', headers: OCTETS, body: body(), signal: abort.signal }),
    ).rejects.toThrow();
    await expect.poll(() => envd.sockets.size).toBe(0);
    expect(await readFile(host('a'), 'utf8')).toBe('old');
    await expect.poll(() => readdir(outside)).toEqual(['a']);
  });

  test('a full file system answers 507 and leaves the target as it was', async () => {
    await runInGuest('mount -t tmpfs -o size=1m tmpfs /mnt/work');
    try {
      await put(path('a'), 'old');
      const answer = await put(path('a'), randomChunks(randomBytes(3 * 1024 * 1024), [65_536]));
      expect(answer.status).toBe(507);
      expect(json(answer)).toMatchObject({ code: 507, message: expect.stringMatching(/no space left/) });
      expect((await get({ path: path('a') })).body.toString()).toBe('old');
      const { entries } = await envd.guest.agent.listDir(directory, { depth: 1, max: 10 });
      expect(entries.map((entry) => entry.path)).toEqual([path('a')]);
    } finally {
      await runInGuest('umount -l /mnt/work');
    }
  });
});

describe('POST /files with a form', () => {
  test('several files by their names, directories kept, in the order of the parts', async () => {
    const form = new FormData();
    form.append('note', 'ignored');
    form.append('file', new Blob(['1']), path('x/one.txt'));
    form.append('file', new Blob(['2']), path('two "quoted".txt'));
    const answer = await postForm({}, form);
    expect(json(answer)).toEqual([
      { name: 'one.txt', path: path('x/one.txt'), type: 'file' },
      { name: 'two "quoted".txt', path: path('two "quoted".txt'), type: 'file' },
    ]);
    expect(await readFile(host('x/one.txt'), 'utf8')).toBe('1');
    expect(await readFile(host('two "quoted".txt'), 'utf8')).toBe('2');
  });

  test('a part without a filename is content, and the path query wins over a filename', async () => {
    const plain = new FormData();
    plain.append('file', 'plain string');
    expect(await postForm({ path: path('a') }, plain)).toMatchObject({ status: 200 });
    expect(await readFile(host('a'), 'utf8')).toBe('plain string');
    const named = new FormData();
    named.append('file', new Blob(['named']), 'elsewhere.txt');
    expect(json(await postForm({ path: path('b') }, named))).toMatchObject([{ path: path('b') }]);
  });

  test('the whole form may be compressed', async () => {
    const form = new FormData();
    form.append('file', new Blob(['zipped']), path('z'));
    const encoded = new Response(form);
    const answer = await envd.request('/files', {
      method: 'POST',
      headers: { 'content-type': encoded.headers.get('content-type') ?? '', 'content-encoding': 'gzip' },
      body: gzipSync(new Uint8Array(await encoded.arrayBuffer())),
    });
    expect(answer.status).toBe(200);
    expect(await readFile(host('z'), 'utf8')).toBe('zipped');
  });

  test('two parts for one path are refused, also when it is written differently', async () => {
    const form = new FormData();
    form.append('file', new Blob(['1']), path('same'));
    form.append('file', new Blob(['2']), path('./x/../same'));
    const answer = await postForm({}, form);
    expect(answer.status).toBe(400);
    expect(json(answer)).toMatchObject({ message: expect.stringMatching(/same path/) });
  });

  test('a part without any name to write to is refused', async () => {
    const form = new FormData();
    form.append('file', 'x');
    expect(await postForm({}, form)).toMatchObject({ status: 400 });
  });

  test('a form without files writes nothing', async () => {
    const form = new FormData();
    form.append('other', 'x');
    expect(json(await postForm({}, form))).toEqual([]);
  });

  test('metadata are those of every file of the request', async () => {
    const form = new FormData();
    for (const name of ['a', 'b']) form.append('file', new Blob([name]), path(name));
    await postForm({}, form, { 'x-metadata-k': 'v' });
    for (const name of ['a', 'b']) expect((await envd.guest.agent.stat(path(name))).xattrs.size).toBe(1);
  });

  test('a body that is cut off is refused and leaves the file of the cut part unwritten', async () => {
    const body =
      `--B\r\nContent-Disposition: form-data; name="file"; filename="${path('whole')}"\r\n\r\nok\r\n` +
      `--B\r\nContent-Disposition: form-data; name="file"; filename="${path('cut')}"\r\n\r\npart`;
    const headers = { 'content-type': 'multipart/form-data; boundary=B' };
    const answer = await envd.request('/files', { method: 'POST', headers, body });
    expect(json(answer)).toMatchObject({ code: 400, message: expect.stringMatching(/multipart body/) });
    expect(await readdir(outside)).toEqual(['whole']);
  });

  test('500 files in one request', async () => {
    const form = new FormData();
    for (let index = 0; index < 500; index++) form.append('file', new Blob([String(index)]), path(`d/${index}`));
    expect(json(await postForm({}, form))).toHaveLength(500);
    expect(await readdir(host('d'))).toHaveLength(500);
    expect(await readFile(host('d/499'), 'utf8')).toBe('499');
  });
});

describe('relative paths', () => {
  test('belong to the home of the user', async () => {
    const answer = await put('note', 'x');
    expect(json(answer)).toEqual([{ name: 'note', path: '/home/user/note', type: 'file' }]);
    expect((await get({ path: '~/note' })).body.toString()).toBe('x');
    expect((await get({ path: 'note', username: 'root' })).status).toBe(404);
  });
});

describe('authorisation', () => {
  const none = { 'x-access-token': [] };

  test('a signature opens one operation on one path, and nothing else does', async () => {
    await writeFile(host('a'), 'secret');
    const signature = (operation: 'read' | 'write', expiration?: number) =>
      signFileRequest({ path: path('a'), operation, username: '', expiration: expiration?.toString() }, TOKEN);
    const signedRead = { path: path('a'), signature: signature('read') };
    expect((await get(signedRead, none)).body.toString()).toBe('secret');
    const now = Math.floor(Date.now() / 1000);
    const fresh = { ...signedRead, signature: signature('read', now + 60), signature_expiration: String(now + 60) };
    expect(await get(fresh, none)).toMatchObject({ status: 200 });
    const stale = { ...signedRead, signature: signature('read', now - 60), signature_expiration: String(now - 60) };
    expect(json(await get(stale, none))).toEqual({ code: 401, message: 'signature is already expired' });
    expect(json(await get({ ...fresh, signature_expiration: String(now + 61) }, none))).toEqual({
      code: 401,
      message: 'invalid signature',
    });
    expect(json(await get({ path: path('a') }, none))).toEqual({
      code: 401,
      message: 'missing signature query parameter',
    });
    expect(json(await get({ path: path('a') }, { 'x-access-token': 'wrong' }))).toEqual({
      code: 401,
      message: 'access token present in header but does not match',
    });
    const write = (query: Record<string, string>) =>
      envd.request(files(query), { method: 'POST', headers: { ...OCTETS, ...none }, body: 'written' });
    expect(await write(signedRead)).toMatchObject({ status: 401 });
    expect(await write({ path: path('a'), signature: signature('write') })).toMatchObject({ status: 200 });
    expect(await readFile(host('a'), 'utf8')).toBe('written');
  });

  test('an upload that is refused is answered although its body is still coming', async () => {
    const answer = await envd.request(files({ path: path('a') }), {
      method: 'POST',
      headers: { ...OCTETS, 'x-access-token': 'wrong' },
      body: randomChunks(randomBytes(4 * 1024 * 1024), [65_536]),
    });
    expect(answer.status).toBe(401);
    expect(await readdir(outside)).toEqual([]);
  });
});
