import { chmod, mkdir, readdir, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { rootProcess } from '@agentenv/agent/testing';
import { PlatformError } from '@agentenv/core';
import { createRecordingLog } from '@agentenv/core/testing';
import { ListDirRequestSchema, ListDirResponseSchema } from '@agentenv/protocol/filesystem';
import { create, fromBinary, toBinary, toJson } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { type EnvdFixture, startEnvd } from '../testing/envd-fixture.ts';
import { createRpcClient, type RpcClient } from '../testing/rpc-client.ts';

/** The test's directory in the guest, and the same one on this machine. */
const directory = '/mnt/work';
let outside: string;
let envd: EnvdFixture;
let rpc: RpcClient;

beforeAll(async () => {
  envd = await startEnvd();
  rpc = createRpcClient(envd.port);
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

const SIGKILL = 9;
const host = (name: string) => join(outside, name);
const path = (name: string) => `${directory}/${name}`;
const call = (method: string, request: unknown, headers = {}) =>
  rpc.unary(`filesystem.Filesystem/${method}`, request, headers);
const basic = (user: string) => ({ authorization: `Basic ${btoa(`${user}:`)}` });

async function entryOf(method: string, request: unknown, headers = {}) {
  const { status, json } = await call(method, request, headers);
  expect(status, JSON.stringify(json)).toBe(200);
  return json.entry as Record<string, unknown>;
}

describe('Stat', () => {
  test('a file, in the form of the protocol', async () => {
    await writeFile(host('a'), 'four');
    await utimes(host('a'), 1_700_000_000, 1_700_000_000.5);
    expect(await entryOf('Stat', { path: path('a') })).toEqual({
      name: 'a',
      type: 'FILE_TYPE_FILE',
      path: path('a'),
      size: '4',
      mode: 0o644,
      permissions: '-rw-r--r--',
      owner: 'root',
      group: 'root',
      modifiedTime: '2023-11-14T22:13:20.500Z',
    });
  });

  test('a link has the type of its target and the full path it leads to', async () => {
    await mkdir(host('real'));
    await chmod(host('real'), 0o1777);
    await symlink('real', host('hop'));
    await symlink('hop', host('link'));
    expect(await entryOf('Stat', { path: path('link') })).toMatchObject({
      type: 'FILE_TYPE_DIRECTORY',
      mode: 0o777,
      permissions: 'Lrwxrwxrwx',
      symlinkTarget: path('real'),
      size: '3',
    });
    expect((await entryOf('Stat', { path: path('real') })).permissions).toBe('dtrwxrwxrwx');
  });

  test('a link that leads nowhere has no type and its own path', async () => {
    await symlink('nowhere', host('dangling'));
    const entry = await entryOf('Stat', { path: path('dangling') });
    expect(entry).toMatchObject({ symlinkTarget: path('dangling') });
    expect(entry).not.toHaveProperty('type');
  });

  test('metadata of an upload, which stay with the file when it moves', async () => {
    const headers = { 'content-type': 'application/octet-stream', 'x-metadata-author': 'Jo' };
    await envd.request(`/files?path=${path('a')}`, { method: 'POST', headers, body: 'x' });
    expect((await entryOf('Stat', { path: path('a') })).metadata).toEqual({ author: 'Jo' });
    const moved = await entryOf('Move', { source: path('a'), destination: path('b') });
    expect(moved.metadata).toEqual({ author: 'Jo' });
  });

  test('relative paths belong to the home of the named user', async () => {
    expect(await entryOf('Stat', { path: '' })).toMatchObject({ path: '/home/user', type: 'FILE_TYPE_DIRECTORY' });
    expect(await entryOf('Stat', { path: '~' }, basic('root'))).toMatchObject({ path: '/root' });
  });

  test.each([
    ['a missing file', { path: path('missing') }, {}, 404, 'not_found', `file not found: ${path('missing')}`],
    ['a file as parent', { path: '/etc/passwd/x' }, {}, 404, 'not_found', 'file not found: /etc/passwd/x'],
    ['an unknown user', { path: '/' }, basic('nosuchuser'), 401, 'unauthenticated', "invalid username: 'nosuchuser'"],
    ["another user's home", { path: '~root' }, {}, 400, 'invalid_argument', /home of another user/],
  ])('%s', async (_what, request, headers, status, code, message) => {
    expect(await call('Stat', request, headers)).toEqual({
      status,
      json: { code, message: expect.stringMatching(message) },
    });
  });
});

describe('ListDir', () => {
  async function names(request: unknown) {
    const { json } = await call('ListDir', request);
    return ((json.entries ?? []) as { path: string }[]).map((entry) => entry.path);
  }

  test('is in pre-order, siblings bytewise, as deep as asked for', async () => {
    await mkdir(host('b/inner'), { recursive: true });
    for (const name of ['a', 'B', 'b/x', 'b/inner/deep', 'é', 'c']) await writeFile(host(name), '');
    expect(await names({ path: directory })).toEqual(['B', 'a', 'b', 'c', 'é'].map(path));
    expect(await names({ path: directory, depth: 1 })).toEqual(['B', 'a', 'b', 'c', 'é'].map(path));
    expect(await names({ path: directory, depth: 2 })).toEqual(['B', 'a', 'b', 'b/inner', 'b/x', 'c', 'é'].map(path));
    expect(await names({ path: directory, depth: 9 })).toEqual(
      ['B', 'a', 'b', 'b/inner', 'b/inner/deep', 'b/x', 'c', 'é'].map(path),
    );
  });

  test('follows a link only as the root, and keeps the path that was asked for', async () => {
    await mkdir(host('real'));
    await writeFile(host('real/file'), '');
    await symlink('real', host('link'));
    expect(await names({ path: path('link') })).toEqual([path('link/file')]);
    expect(await names({ path: directory, depth: 5 })).toEqual([path('link'), path('real'), path('real/file')]);
  });

  test.each([
    ['10 000 in one directory', 1, (index: number) => `file-${String(index).padStart(5, '0')}`],
    ['10 000 in a tree', 3, (index: number) => `${Math.floor(index / 1000)}/${index % 10}/${index}`],
  ])('%s are complete, in both codecs', async (_what, depth, nameOf) => {
    const files = Array.from({ length: 10_000 }, (_, index) => nameOf(index));
    await Promise.all(
      [...new Set(files.map((name) => dirname(host(name))))].map((at) => mkdir(at, { recursive: true })),
    );
    for (const name of files) await writeFile(host(name), '');
    const { json } = await call('ListDir', { path: directory, depth });
    const entries = (json.entries ?? []) as { path: string; type: string }[];
    const found = entries.filter(({ type }) => type === 'FILE_TYPE_FILE').map((entry) => entry.path);
    expect(found.toSorted()).toEqual(files.map(path).toSorted());

    const answer = await envd.request('/filesystem.Filesystem/ListDir', {
      method: 'POST',
      headers: { 'content-type': 'application/proto' },
      body: toBinary(ListDirRequestSchema, create(ListDirRequestSchema, { path: directory, depth })),
    });
    expect(toJson(ListDirResponseSchema, fromBinary(ListDirResponseSchema, answer.body))).toEqual({ entries });
  });

  test('a listing that breaks in the middle of its answer breaks the connection', async () => {
    await using doomed = await startEnvd();
    await mkdir(join(doomed.shared, 'many'));
    for (let index = 0; index < 6000; index++) await writeFile(join(doomed.shared, 'many', `${index}`), '');
    const { agent } = doomed.guest;
    const { listDir } = agent;
    vi.spyOn(agent, 'listDir')
      .mockImplementationOnce(listDir)
      .mockRejectedValueOnce(new PlatformError('internal', 'the disk broke'));
    await expect(
      doomed.request('/filesystem.Filesystem/ListDir', {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ path: '/mnt/many' }),
      }),
    ).rejects.toMatchObject({ code: 'ECONNRESET' });
  });

  test('a client that leaves in the middle of a listing is not worth a warning', async () => {
    const log = createRecordingLog();
    await using left = await startEnvd({ log });
    await mkdir(join(left.shared, 'many'));
    for (let index = 0; index < 6000; index++) await writeFile(join(left.shared, 'many', `${index}`), '');
    const { agent } = left.guest;
    const { listDir } = agent;
    const second = Promise.withResolvers<void>();
    const settled = Promise.withResolvers<void>();
    vi.spyOn(agent, 'listDir')
      .mockImplementationOnce(listDir)
      .mockImplementationOnce(async (_path, _options, signal) => {
        second.resolve();
        await new Promise((resolve) => signal?.addEventListener('abort', resolve));
        settled.resolve();
        throw signal?.reason;
      });
    const answer = left.request('/filesystem.Filesystem/ListDir', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ path: '/mnt/many' }),
    });
    const refused = expect(answer).rejects.toThrow();
    await second.promise;
    for (const socket of left.sockets) socket.destroy();
    await Promise.all([refused, settled.promise]);
    await new Promise(setImmediate);
    expect(log.find('warn')).toEqual([]);
  });

  test('what cannot be opened is told, not left out', async () => {
    const { agent } = envd.guest;
    await mkdir(host('a/closed'), { recursive: true });
    // A file system in user space lets nobody but its owner in, root included. Nothing has to answer for it.
    const mount = 'mount -i -t fuse -o fd=3,rootmode=40000,user_id=65533,group_id=65533 none /mnt/work/a/closed';
    const holder = await agent.spawn(
      rootProcess(['sh', '-c', `exec 3<>/dev/fuse; ${mount} && echo mounted && sleep 60`]),
    );
    let output = '';
    holder.onOutput(({ data }) => {
      output += Buffer.from(data).toString();
    });
    try {
      await expect.poll(() => output).toContain('mounted');
      for (const depth of [2, 3]) {
        expect(await call('ListDir', { path: directory, depth })).toEqual({
          status: 403,
          json: { code: 'permission_denied', message: expect.stringContaining(path('a/closed')) },
        });
      }
      const { json } = await call('ListDir', { path: directory, depth: 1 });
      expect(json.entries).toMatchObject([{ name: 'a' }]);
    } finally {
      await holder.signal(SIGKILL);
      const unmount = await agent.spawn(rootProcess(['umount', '-l', '/mnt/work/a/closed']));
      unmount.onOutput(() => undefined);
      await unmount.exit;
    }
  });

  test('an empty directory has no entries', async () => {
    expect(await call('ListDir', { path: directory })).toEqual({ status: 200, json: {} });
  });

  test('a file is an invalid argument, a missing one is not found', async () => {
    expect(await call('ListDir', { path: '/etc/passwd' })).toMatchObject({
      status: 400,
      json: { code: 'invalid_argument' },
    });
    expect(await call('ListDir', { path: path('missing') })).toMatchObject({
      status: 404,
      json: { code: 'not_found' },
    });
  });
});

describe('MakeDir', () => {
  test('makes what is missing for the user and leaves alone what is there', async () => {
    const entry = await entryOf('MakeDir', { path: path('new/deep') });
    expect(entry).toMatchObject({ path: path('new/deep'), type: 'FILE_TYPE_DIRECTORY', mode: 0o755, owner: 'user' });
    expect(await entryOf('Stat', { path: path('new') })).toMatchObject({ owner: 'user', mode: 0o755 });
    expect(await entryOf('Stat', { path: directory })).toMatchObject({ owner: 'root' });
  });

  test('an existing directory already exists, a file in the way is an invalid argument', async () => {
    await writeFile(host('file'), '');
    expect(await call('MakeDir', { path: directory })).toMatchObject({ status: 409, json: { code: 'already_exists' } });
    for (const name of ['file', 'file/below']) {
      expect(await call('MakeDir', { path: path(name) })).toMatchObject({
        status: 400,
        json: { code: 'invalid_argument' },
      });
    }
  });
});

describe('Move', () => {
  test('renames over what is there and makes missing parents', async () => {
    await writeFile(host('a'), 'new');
    await mkdir(host('to'));
    await writeFile(host('to/b'), 'old');
    expect(await entryOf('Move', { source: path('a'), destination: path('to/b') })).toMatchObject({
      name: 'b',
      path: path('to/b'),
      size: '3',
    });
    expect(await entryOf('Move', { source: path('to'), destination: path('x/y') })).toMatchObject({
      path: path('x/y'),
    });
    expect(await readdir(outside)).toEqual(['x']);
  });

  test.each([
    ['a directory over one that is not empty', 'tree', 'full', 409, 'already_exists', /not empty: .*full$/],
    [
      'a directory over a file',
      'tree',
      'file',
      400,
      'invalid_argument',
      /a directory is needed where a file is: .*file$/,
    ],
    ['to below a file', 'tree', 'file/x', 400, 'invalid_argument', /a directory is needed where a file is: .*file\/x$/],
    ['a file over a directory', 'file', 'tree', 400, 'invalid_argument', /is a directory: .*tree$/],
    ['a directory into itself', 'tree', 'tree/inner', 400, 'invalid_argument', /tree cannot be moved to .*inner$/],
    ['from below a file', 'file/x', 'y', 404, 'not_found', /source file not found: .*file\/x$/],
    ['to another file system', 'file', '/tmp/elsewhere', 400, 'invalid_argument', /another file system/],
  ])('%s is an error that names which', async (_what, source, destination, status, code, message) => {
    await mkdir(host('tree'));
    await mkdir(host('full/x'), { recursive: true });
    await writeFile(host('file'), 'kept');
    const to = destination.startsWith('/') ? destination : path(destination);
    expect(await call('Move', { source: path(source), destination: to })).toEqual({
      status,
      json: { code, message: expect.stringMatching(message) },
    });
    expect(await readdir(outside)).toEqual(['file', 'full', 'tree']);
  });

  test('a missing source is not found', async () => {
    expect(await call('Move', { source: path('missing'), destination: path('b') })).toMatchObject({
      status: 404,
      json: { code: 'not_found' },
    });
  });
});

describe('Remove', () => {
  test('removes trees, links without their targets, and is content when there is nothing', async () => {
    await mkdir(host('tree/inner'), { recursive: true });
    await mkdir(host('kept'));
    await writeFile(host('kept/file'), '');
    await symlink(path('kept'), host('tree/link'));
    expect(await call('Remove', { path: path('tree') })).toEqual({ status: 200, json: {} });
    expect(await call('Remove', { path: path('tree') })).toEqual({ status: 200, json: {} });
    expect(await readdir(host('kept'))).toEqual(['file']);
  });

  test.each(['/', '//', '/home/..'])('refuses %s', async (root) => {
    expect(await call('Remove', { path: root })).toMatchObject({ status: 400, json: { code: 'invalid_argument' } });
  });

  test('a mount point in the way of removing or moving is an invalid argument, and the path has a reason', async () => {
    for (const [method, request] of [
      ['Remove', { path: '/mnt' }],
      ['Move', { source: '/mnt', destination: '/moved' }],
    ] as const) {
      const { status, json } = await call(method, request);
      expect({ status, json }).toMatchObject({ status: 400, json: { code: 'invalid_argument' } });
      expect(json.message).toMatch(/^path '\/(mnt|moved)': .*busy/);
    }
  });

  test('what the system refuses is told with its reason', async () => {
    await symlink('loop', host('loop'));
    for (const [method, name, reason] of [
      ['Stat', 'x'.repeat(256), 'name too long'],
      ['Remove', 'x'.repeat(256), 'name too long'],
      ['Stat', 'loop/x', 'symbolic links'],
      ['ListDir', 'loop', 'symbolic links'],
      ['CreateWatcher', 'loop', 'symbolic links'],
    ] as const) {
      const { status, json } = await call(method, { path: path(name) });
      expect({ status, json }, method).toMatchObject({ status: 400, json: { code: 'invalid_argument' } });
      expect(json.message, method).toContain(`path '${path(name)}': `);
      expect(json.message, method).toContain(reason);
    }
  });
});
