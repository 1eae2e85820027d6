import type { SandboxId } from '@agentenv/core';
import { sandboxRecord, snapshotRecord } from '@agentenv/core/testing';
import type { InjectOptions } from 'fastify';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestApp, TEST_API_KEY, type TestApp } from '../testing/app.ts';

const ID = 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId;

let front: TestApp;
beforeAll(async () => {
  front = await createTestApp();
});
beforeEach(() => {
  front.orchestrator.clear();
  front.orchestrator.put(sandboxRecord({ id: ID }));
});
afterAll(() => front[Symbol.asyncDispose]());

const call = (method: 'GET' | 'POST' | 'DELETE', url: string, options: InjectOptions = {}) =>
  front.app.inject({ method, url, ...options, headers: { 'x-api-key': TEST_API_KEY } });
const snapshot = (payload?: InjectOptions['payload']) =>
  call('POST', `/sandboxes/${ID}/snapshots`, payload === undefined ? {} : { payload });

describe('a snapshot', () => {
  it('is answered with all that clients of both families look for', async () => {
    const response = await snapshot({ name: 'Data' });
    expect(response.statusCode).toBe(201);
    expect(response.json()).toEqual({
      snapshotID: 'default/data:default',
      names: ['default/data:default'],
      ...{ cpuCount: 2, memoryMB: 1024, diskSizeMB: 10_240 },
      createdAt: expect.stringMatching(/^\d{4}-.*Z$/),
      updatedAt: expect.stringMatching(/^\d{4}-.*Z$/),
    });
  });

  it.each([[undefined], [{}], [{ name: null }], [{ name: undefined }]])(
    'without a name (%j) is called by its template',
    async (payload) => {
      const response = await snapshot(payload);
      expect(response.statusCode).toBe(201);
      expect(response.json()).toMatchObject({
        snapshotID: expect.stringMatching(/^i[a-z0-9]{20}:default$/),
        names: [],
      });
      expect(front.orchestrator.calls).toEqual([{ method: 'snapshot', arguments: [ID, undefined] }]);
    },
  );

  it.each([['a b'], [''], ['other/data'], [ID], ['x'.repeat(600)]])('refuses the name %j with 400', async (name) => {
    const response = await snapshot({ name });
    expect(response.statusCode).toBe(400);
    expect(response.json()).toMatchObject({ code: 400, message: expect.stringContaining('name') });
  });

  it('of an unknown sandbox is 404, as everywhere', async () => {
    const response = await call('POST', '/sandboxes/unknown/snapshots');
    expect(response.statusCode).toBe(404);
    expect(response.json()).toMatchObject({ code: 404 });
  });

  it('is found, and deleted once, by the id it was answered with, encoded or not (T8)', async () => {
    for (const name of ['data', undefined]) {
      const { snapshotID } = (await snapshot({ name })).json();
      for (const written of new Set([encodeURIComponent(snapshotID), snapshotID.replace('/', '%2F')])) {
        const found = await call('GET', `/snapshots/${written}`);
        expect(found.statusCode).toBe(200);
        expect(found.json()).toMatchObject({ snapshotID });
      }
      const url = `/templates/${encodeURIComponent(snapshotID)}`;
      expect((await call('DELETE', url)).statusCode).toBe(204);
      const again = await call('DELETE', url);
      expect(again.statusCode).toBe(404);
      expect(again.json()).toMatchObject({ code: 404 });
      expect((await call('GET', `/snapshots/${encodeURIComponent(snapshotID)}`)).statusCode).toBe(404);
    }
  });
});

describe('the list of snapshots', () => {
  const build = (number: number): ReturnType<typeof snapshotRecord>['buildId'] =>
    `019b76da-a800-7000-8000-${String(number).padStart(12, '0')}` as never;
  const page = async (query: string) => {
    const response = await call('GET', `/snapshots?${query}`);
    expect(response.statusCode).toBe(200);
    const ids = (response.json() as { snapshotID: string }[]).map(({ snapshotID }) => snapshotID);
    return { ids, nextToken: response.headers['x-next-token'] };
  };

  it('is newest first, page by page, each exactly once, though some are of the same moment', async () => {
    for (let number = 0; number < 7; number++) {
      const createdAt = Date.UTC(2026, 0, 1) + Math.floor(number / 3);
      front.orchestrator.snapshots.put(snapshotRecord({ buildId: build(number), tags: [], createdAt }));
    }
    const seen: string[] = [];
    let token = '';
    for (;;) {
      const { ids, nextToken } = await page(`limit=2${token}`);
      seen.push(...ids);
      if (nextToken === undefined) break;
      expect(ids).toHaveLength(2);
      token = `&nextToken=${String(nextToken)}`;
    }
    expect(seen).toEqual([6, 3, 4, 5, 0, 1, 2].map((number) => `${build(number)}:default`));
    expect((await page('')).nextToken).toBeUndefined();
  });

  it('is filtered by sandbox, and by name or id with namespace and tag left out', async () => {
    front.orchestrator.snapshots.put(snapshotRecord({ buildId: build(1), tags: [], createdAt: 1 }));
    front.orchestrator.snapshots.put(snapshotRecord({ buildId: build(2), createdAt: 2 }));
    const other = { name: 'other', templateId: 'i000000000000000other' as never, sandboxId: ID };
    front.orchestrator.snapshots.put(snapshotRecord({ ...other, buildId: build(3), createdAt: 3 }));
    const both = ['default/data:default', `${build(1)}:default`];
    for (const name of ['data', 'DATA', 'default/data', 'data:v7', 'elsewhere/data:default', 'i0000000000000000snap']) {
      expect((await page(`name=${encodeURIComponent(name)}`)).ids).toEqual(both);
    }
    expect((await page(`sandboxID=${ID}`)).ids).toEqual(['default/other:default']);
    expect((await page(`sandboxID=${ID}&name=data`)).ids).toEqual([]);
    expect((await page('sandboxID=unknown')).ids).toEqual([]);
    expect((await page('name=unknown')).ids).toEqual([]);
  });

  it.each(['limit=0', 'limit=101', 'nextToken=nonsense', 'name=a%20b', 'name='])(
    'refuses %s with 400',
    async (query) => {
      const response = await call('GET', `/snapshots?${query}`);
      expect(response.statusCode).toBe(400);
      expect(response.json()).toMatchObject({ code: 400 });
    },
  );
});
