import { randomBytes } from 'node:crypto';
import { readFile, symlink, writeFile } from 'node:fs/promises';
import { gunzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type FilesDriver, filesUrl, json, startFilesDriver } from '../testing/files-driver.ts';

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

describe('GET /files', () => {
  test('answers the bytes, their length, type and name', async () => {
    await writeFile(files.host('naïve.txt'), 'hello');
    const answer = await files.get({ path: files.path('naïve.txt') });
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
    await writeFile(files.host('empty'), '');
    const answer = await files.get({ path: files.path('empty') }, { 'accept-encoding': 'gzip, deflate' });
    expect(answer).toMatchObject({ status: 200, headers: { 'content-length': '0' } });
    expect(answer.headers).not.toHaveProperty('content-encoding');
  });

  test('text is compressed for those who accept it, random bytes are not', async () => {
    const text = 'line\n'.repeat(100_000);
    await writeFile(files.host('a.txt'), text);
    await writeFile(files.host('random'), randomBytes(100_000));
    const compressed = await files.get({ path: files.path('a.txt') }, { 'accept-encoding': 'gzip, deflate' });
    expect(compressed.headers['content-encoding']).toBe('gzip');
    expect(gunzipSync(compressed.body).toString()).toBe(text);
    expect((await files.get({ path: files.path('random') }, { 'accept-encoding': 'gzip' })).headers).not.toHaveProperty(
      'content-encoding',
    );
    const forced = await files.get({ path: files.path('random') }, { 'accept-encoding': 'gzip, identity;q=0' });
    expect(gunzipSync(forced.body)).toEqual(await readFile(files.host('random')));
  });

  test('406 when nothing we send is accepted', async () => {
    await writeFile(files.host('a'), 'x');
    const answer = await files.get({ path: files.path('a') }, { 'accept-encoding': 'br, identity;q=0' });
    expect(answer.status).toBe(406);
    expect(json(answer)).toMatchObject({ code: 406 });
  });

  test('follows links and reads files of procfs, whose size is a lie', async () => {
    await writeFile(files.host('target'), 'linked');
    await symlink(files.path('target'), files.host('link'));
    expect((await files.get({ path: files.path('link') })).body.toString()).toBe('linked');
    const answer = await files.get({ path: '/proc/cpuinfo' });
    expect(answer.status).toBe(200);
    expect(answer.body.toString()).toContain('processor');
    expect((await files.get({ path: '/sys/kernel/mm/transparent_hugepage/enabled' })).body.toString()).toContain(
      'never',
    );
  });

  test.each([
    ['a missing file', () => ({ path: files.path('missing') }), 404, /^path '.*missing' does not exist$/],
    ['a directory', () => ({ path: files.directory }), 400, /is a directory/],
    ['a device', () => ({ path: '/dev/zero' }), 400, /is not a regular file/],
    ['an unknown user', () => ({ path: '/x', username: 'nosuchuser' }), 401, /^error looking up user 'nosuchuser': /],
    ['an empty user', () => ({ path: '/x', username: '' }), 401, /^error looking up user '': /],
    ["another user's home", () => ({ path: '~daemon/x' }), 400, /home of another user/],
    ['a NUL byte', () => ({ path: '/a\0b' }), 400, /NUL/],
    // These can be opened, and fail at their first byte: with EINVAL, with EIO, and with EAGAIN at their end.
    ['a file for writing only', () => ({ path: '/proc/self/clear_refs' }), 400, /clear_refs' cannot be read/],
    ['a file that has nothing at its start', () => ({ path: '/proc/self/mem' }), 400, /mem' cannot be read/],
    ['a file that never ends', () => ({ path: '/proc/kmsg' }), 400, /kmsg' is not a regular file/],
  ])('%s is a clear error', async (_what, query, status, message) => {
    const answer = await files.get(query());
    expect(answer.status).toBe(status);
    expect(answer.headers['content-type']).toBe('application/json; charset=utf-8');
    expect(json(answer)).toEqual({ code: status, message: expect.stringMatching(message) });
  });

  test('a name that is no UTF-8 is refused instead of changed', async () => {
    for (const query of ['path=%FF', 'path=/etc/hostname&username=%C3']) {
      const answer = await files.envd.request(`/files?${query}`);
      expect(answer.status).toBe(400);
      expect(json(answer)).toEqual({ code: 400, message: expect.stringContaining('UTF-8') });
    }
    expect((await files.put('a\uFFFD', 'x')).status).toBe(200);
  });

  test('HEAD answers the headers only', async () => {
    await writeFile(files.host('a'), 'hello');
    const answer = await files.envd.request(filesUrl({ path: files.path('a') }), { method: 'HEAD' });
    expect(answer).toMatchObject({ status: 200, headers: { 'content-length': '5' } });
    expect(answer.body).toHaveLength(0);
  });

  test('who asks by a condition or for ranges gets the bytes as they are', async () => {
    await writeFile(files.host('a.txt'), 'line\n'.repeat(1000));
    for (const condition of [{ 'if-none-match': '"other"' }, { range: 'bytes=0-1,5-6' }]) {
      const answer = await files.get({ path: files.path('a.txt') }, { 'accept-encoding': 'gzip', ...condition });
      expect(answer).toMatchObject({ status: 200, headers: { 'content-length': '5000' } });
      expect(answer.headers.etag).toMatch(/^"/);
    }
  });

  test('ranges and conditions', async () => {
    const bytes = randomBytes(300_000);
    await writeFile(files.host('a'), bytes);
    const whole = await files.get({ path: files.path('a') });
    expect(whole.headers['accept-ranges']).toBe('bytes');
    const part = await files.get(
      { path: files.path('a') },
      { range: 'bytes=100000-199999', 'accept-encoding': 'gzip' },
    );
    expect(part).toMatchObject({
      status: 206,
      headers: { 'content-range': 'bytes 100000-199999/300000', 'content-length': '100000' },
    });
    expect(part.body.equals(bytes.subarray(100_000, 200_000))).toBe(true);
    expect((await files.get({ path: files.path('a') }, { range: 'bytes=-5' })).body.equals(bytes.subarray(-5))).toBe(
      true,
    );
    const beyond = await files.get({ path: files.path('a') }, { range: 'bytes=300000-' });
    expect(beyond).toMatchObject({ status: 416, headers: { 'content-range': 'bytes */300000' } });
    const { etag, 'last-modified': modified } = whole.headers;
    expect(await files.get({ path: files.path('a') }, { 'if-none-match': etag ?? '' })).toMatchObject({ status: 304 });
    expect(await files.get({ path: files.path('a') }, { 'if-modified-since': modified ?? '' })).toMatchObject({
      status: 304,
    });
    expect(await files.get({ path: files.path('a') }, { 'if-match': '"other"' })).toMatchObject({ status: 412 });
    await writeFile(files.host('a'), 'changed');
    expect(await files.get({ path: files.path('a') }, { 'if-none-match': etag ?? '' })).toMatchObject({ status: 200 });
    const resumed = await files.get({ path: files.path('a') }, { range: 'bytes=1-', 'if-range': etag ?? '' });
    expect(resumed).toMatchObject({ status: 200 });
    expect(resumed.body.toString()).toBe('changed');
  });
});

describe('relative paths', () => {
  test('belong to the home of the user', async () => {
    const answer = await files.put('note', 'x');
    expect(json(answer)).toEqual([{ name: 'note', path: '/home/user/note', type: 'file' }]);
    expect((await files.get({ path: '~/note' })).body.toString()).toBe('x');
    expect((await files.get({ path: 'note', username: 'root' })).status).toBe(404);
  });
});
