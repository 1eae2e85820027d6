import { appendFile, chmod, mkdir, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { Frame } from '../testing/connect-frames.ts';
import { type EnvdFixture, startEnvd } from '../testing/envd-fixture.ts';
import { createRpcClient, type RpcClient, type ServerStream } from '../testing/rpc-client.ts';

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

const host = (name: string) => join(outside, name);

interface Event {
  readonly name: string;
  readonly type: string;
  readonly entry?: { readonly path: string; readonly size?: string };
}

const eventOf = ({ json }: Frame): Event | undefined => json.filesystem as Event | undefined;

/** Opens a watch and reads its start frame: from here on nothing may be missed. */
async function watch(request: Record<string, unknown> = {}, headers = {}): Promise<ServerStream> {
  const stream = await rpc.stream('filesystem.Filesystem/WatchDir', { path: directory, ...request }, headers);
  const first = await stream.next();
  expect(first?.json, JSON.stringify(first)).toEqual({ start: {} });
  return stream;
}

/** The events up to the first that satisfies the condition. */
async function eventsUntil(stream: ServerStream, last: (event: Event) => boolean): Promise<Event[]> {
  const seen: Event[] = [];
  await stream.until((frame) => {
    const event = eventOf(frame);
    if (event === undefined) return false;
    seen.push(event);
    return last(event);
  });
  return seen;
}

const short = ({ type, name }: Event): string => `${type.replace('EVENT_TYPE_', '')} ${name}`;

async function errorOf(request: Record<string, unknown>) {
  await using stream = await rpc.stream('filesystem.Filesystem/WatchDir', request);
  expect(stream.status).toBe(200);
  return (await stream.rest()).at(-1)?.json.error;
}

describe('WatchDir', () => {
  test('reports creation, writes, modes, renames and removal by relative names', async () => {
    await using stream = await watch();
    await writeFile(host('a'), 'x');
    await appendFile(host('a'), 'y');
    await chmod(host('a'), 0o600);
    await rename(host('a'), host('b'));
    await rm(host('b'));
    const events = (await eventsUntil(stream, ({ type }) => type === 'EVENT_TYPE_REMOVE')).map(short);
    expect([...new Set(events)]).toEqual(['CREATE a', 'WRITE a', 'CHMOD a', 'RENAME a', 'CREATE b', 'REMOVE b']);
  });

  test('without recursion nothing below is reported', async () => {
    await mkdir(host('sub'));
    await using stream = await watch();
    await writeFile(host('sub/hidden'), 'x');
    await writeFile(host('last'), '');
    const events = await eventsUntil(stream, ({ name }) => name === 'last');
    expect(events.every(({ name }) => name === 'last' || name === 'sub')).toBe(true);
  });

  test('a directory that is made while watching is watched before anybody hears of it', async () => {
    await using stream = await watch({ recursive: true });
    await mkdir(host('new/deeper'), { recursive: true });
    await eventsUntil(stream, ({ name }) => name === 'new/deeper');
    await writeFile(host('new/deeper/file'), 'x');
    await eventsUntil(stream, (event) => short(event) === 'CREATE new/deeper/file');
  });

  test('a burst of 500 files in fresh nested folders loses none', async () => {
    await using stream = await watch({ recursive: true });
    const wanted = new Set<string>();
    for (let folder = 0; folder < 25; folder++) {
      await mkdir(host(`f${folder}/g`), { recursive: true });
      for (let file = 0; file < 20; file++) {
        wanted.add(`f${folder}/g/${file}`);
        await writeFile(host(`f${folder}/g/${file}`), 'x');
      }
    }
    await eventsUntil(stream, (event) => {
      if (event.type === 'EVENT_TYPE_CREATE') wanted.delete(event.name);
      return wanted.size === 0;
    });
  });

  test('entries come only when asked for, and not with what is gone', async () => {
    await using stream = await watch({ includeEntry: true });
    await writeFile(host('kept'), 'four');
    await rm(host('kept'));
    await writeFile(host('stays'), 'four');
    const events = await eventsUntil(stream, (event) => short(event) === 'WRITE stays');
    expect(events.filter(({ type }) => type === 'EVENT_TYPE_REMOVE').every(({ entry }) => entry === undefined)).toBe(
      true,
    );
    expect(events.at(-1)?.entry).toMatchObject({ name: 'stays', path: `${directory}/stays`, type: 'FILE_TYPE_FILE' });
    await using plain = await watch();
    await appendFile(host('stays'), 'x');
    expect((await eventsUntil(plain, () => true))[0]).not.toHaveProperty('entry');
  });

  test('silence is broken by keepalives', async () => {
    await using stream = await watch({}, { 'keepalive-ping-interval': '1' });
    await stream.until(({ json }) => json.keepalive !== undefined);
  });

  test('ends at its time limit', async () => {
    await using stream = await watch({}, { 'connect-timeout-ms': '200' });
    expect((await stream.rest()).at(-1)).toMatchObject({ flags: 2, json: { error: { code: 'deadline_exceeded' } } });
  });

  test('a missing directory and a file are errors in the end frame', async () => {
    expect(await errorOf({ path: '/no/such' })).toEqual({ code: 'not_found', message: 'path not found: /no/such' });
    expect(await errorOf({ path: '/etc/passwd' })).toEqual({
      code: 'invalid_argument',
      message: 'path is not a directory: /etc/passwd',
    });
  });

  test('watches of clients that went away are given back', async () => {
    for (let round = 0; round < 100; round++) (await watch()).close();
    await using stream = await watch();
    await writeFile(host('seen'), '');
    await eventsUntil(stream, ({ name }) => name === 'seen');
  });
});

describe('polling watchers', () => {
  const call = (method: string, request: unknown) => rpc.unary(`filesystem.Filesystem/${method}`, request);

  test('collect events until they are fetched, and end when removed', async () => {
    const { json } = await call('CreateWatcher', { path: directory, recursive: true });
    expect(json.watcherId).toMatch(/^w[0-9a-f]+$/);
    await mkdir(host('sub'));
    await writeFile(host('sub/file'), 'x');
    const seen: string[] = [];
    await expect
      .poll(async () => {
        const { json: answer } = await call('GetWatcherEvents', { watcherId: json.watcherId });
        seen.push(...((answer.events ?? []) as Event[]).map(short));
        return [...new Set(seen)];
      })
      .toEqual(['CREATE sub', 'CREATE sub/file', 'WRITE sub/file']);
    expect(await call('RemoveWatcher', { watcherId: json.watcherId })).toEqual({ status: 200, json: {} });
    for (const method of ['GetWatcherEvents', 'RemoveWatcher']) {
      expect(await call(method, { watcherId: json.watcherId })).toMatchObject({
        status: 404,
        json: { code: 'not_found' },
      });
    }
  });

  test('have entries when asked for', async () => {
    const { json } = await call('CreateWatcher', { path: directory, includeEntry: true });
    await writeFile(host('described'), 'four');
    const events: Event[] = [];
    await expect
      .poll(async () => {
        const { json: answer } = await call('GetWatcherEvents', { watcherId: json.watcherId });
        events.push(...((answer.events ?? []) as Event[]));
        return events.map(short);
      })
      .toContain('WRITE described');
    expect(events.at(-1)?.entry).toMatchObject({ path: `${directory}/described`, size: '4' });
    await call('RemoveWatcher', { watcherId: json.watcherId });
  });

  test('are limited, and give back what they held', async () => {
    const ids: unknown[] = [];
    let refused: Record<string, unknown> | undefined;
    while (refused === undefined && ids.length < 100) {
      const { status, json } = await call('CreateWatcher', { path: directory });
      if (status === 200) ids.push(json.watcherId);
      else refused = json;
    }
    expect(refused).toMatchObject({ code: 'resource_exhausted' });
    for (const watcherId of ids) await call('RemoveWatcher', { watcherId });
    await expect.poll(async () => (await call('CreateWatcher', { path: directory })).status).toBe(200);
  });

  test('are limited also when many are asked for at once', async () => {
    const answers = await Promise.all(Array.from({ length: 70 }, () => call('CreateWatcher', { path: directory })));
    const made = answers.filter(({ status }) => status === 200);
    const refused = answers.filter(({ status }) => status !== 200);
    for (const { json } of made) await call('RemoveWatcher', { watcherId: json.watcherId });
    for (const { json } of refused) {
      expect(json).toMatchObject({
        code: 'resource_exhausted',
        message: '64 watchers exist in this sandbox, the limit',
      });
    }
    expect(refused.length).toBeGreaterThanOrEqual(6);
    // One that could not be opened does not count.
    for (let count = 0; count < 70; count++) await call('CreateWatcher', { path: '/no/such' });
    await expect.poll(async () => (await call('CreateWatcher', { path: directory })).status).toBe(200);
  });

  test('a missing directory is not found', async () => {
    expect(await call('CreateWatcher', { path: '/no/such' })).toMatchObject({
      status: 404,
      json: { code: 'not_found' },
    });
  });
});
