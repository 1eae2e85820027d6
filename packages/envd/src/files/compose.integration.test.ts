import { randomBytes } from 'node:crypto';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { rootProcess } from '@agentenv/agent/testing';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type EnvdFixture, startEnvd } from '../testing/envd-fixture.ts';

let outside: string;
let envd: EnvdFixture;

beforeAll(async () => {
  envd = await startEnvd();
});
afterAll(async () => {
  await envd[Symbol.asyncDispose]();
});
beforeEach(async () => {
  outside = join(envd.shared, 'work');
  await mkdir(outside);
  await writeFile(join(outside, '1'), 'one ');
  await writeFile(join(outside, '2'), 'two');
});
afterEach(async () => {
  await rm(outside, { recursive: true, force: true });
});

async function compose(body: unknown) {
  const headers = { 'content-type': 'application/json' };
  const text = typeof body === 'string' || body instanceof Uint8Array ? body : JSON.stringify(body);
  const answer = await envd.request('/files/compose', { method: 'POST', headers, body: text });
  return { status: answer.status, json: JSON.parse(answer.body.toString()) as unknown };
}

describe('POST /files/compose', () => {
  test('joins the sources in order, removes them and tells the file', async () => {
    const answer = await compose({ source_paths: ['/mnt/work/1', '/mnt/work/2'], destination: '/mnt/work/all' });
    expect(answer).toEqual({ status: 200, json: { name: 'all', path: '/mnt/work/all', type: 'file' } });
    expect(await readFile(join(outside, 'all'), 'utf8')).toBe('one two');
    expect(await readdir(outside)).toEqual(['all']);
  });

  test('relative paths belong to the home of the user', async () => {
    const answer = await compose({ source_paths: ['/mnt/work/1'], destination: 'all', username: 'root' });
    expect(answer).toMatchObject({ status: 200, json: { path: '/root/all' } });
  });

  test.each([
    ['no UTF-8', Buffer.from('{"source_paths":["/mnt/work/1"],"destination":"/mnt/work/\xff"}', 'latin1')],
    ['half a character', '{"source_paths":["/mnt/work/1"],"destination":"/mnt/work/\\udfff"}'],
  ])('a name that is %s is a 400, and everything is as it was', async (_what, body) => {
    expect(await compose(body)).toMatchObject({ status: 400 });
    expect(await readdir(outside)).toEqual(['1', '2']);
  });

  test('a full file system is a 507, and everything is as it was', async () => {
    const { agent } = envd.guest;
    const mount = await agent.spawn(
      rootProcess(['sh', '-c', 'mkdir /mnt/work/small && mount -t tmpfs -o size=64k tmpfs /mnt/work/small']),
    );
    expect(await mount.exit).toMatchObject({ code: 0 });
    await writeFile(join(outside, '1'), randomBytes(200_000));
    const answer = await compose({ source_paths: ['/mnt/work/1', '/mnt/work/2'], destination: '/mnt/work/small/all' });
    expect(answer).toEqual({ status: 507, json: { code: 507, message: expect.stringMatching(/no space/) } });
    expect((await readdir(outside)).toSorted()).toEqual(['1', '2', 'small']);
    expect((await agent.listDir('/mnt/work/small', { depth: 1, max: 1 })).entries).toEqual([]);
  });

  test('a source that cannot be read is the path that is told', async () => {
    await mkdir(join(outside, 'folder'));
    expect(await compose({ source_paths: ['/mnt/work/folder'], destination: '/mnt/work/all' })).toMatchObject({
      status: 400,
      json: { message: "path '/mnt/work/folder' is a directory" },
    });
    expect(await compose({ source_paths: ['/mnt/work/none'], destination: '/mnt/work/all' })).toMatchObject({
      status: 404,
      json: { message: expect.stringMatching(/^path '\/mnt\/work\/none': no such file/) },
    });
  });

  test('needs the access token', async () => {
    const answer = await envd.request('/files/compose', {
      method: 'POST',
      headers: { 'x-access-token': [] },
      body: '{}',
    });
    expect(answer.status).toBe(401);
  });

  test.each([
    ['a missing source', { source_paths: ['/mnt/work/1', '/mnt/work/missing'], destination: '/mnt/work/all' }, 404],
    ['an unknown user', { source_paths: ['/mnt/work/1'], destination: '/x', username: 'nosuchuser' }, 401],
    ['no sources', { source_paths: [], destination: '/x' }, 400],
    ['sources that are no strings', { source_paths: [1], destination: '/x' }, 400],
    ['no destination', { source_paths: ['/mnt/work/1'] }, 400],
    ['a directory as destination', { source_paths: ['/mnt/work/1'], destination: '/mnt/work' }, 400],
    ['a list', [], 400],
    ['no JSON', '{', 400],
    [
      'more sources than fit',
      { source_paths: Array.from({ length: 10_000 }, () => 'x'.repeat(98)), destination: '/x' },
      400,
    ],
    ['an oversized body', JSON.stringify({ source_paths: ['x'.repeat(1_100_000)] }), 413],
  ])('%s is refused and leaves the sources', async (_what, body, status) => {
    expect(await compose(body)).toEqual({ status, json: { code: status, message: expect.any(String) } });
    expect(await readdir(outside)).toEqual(['1', '2']);
  });
});
