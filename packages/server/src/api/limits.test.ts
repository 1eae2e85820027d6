import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestApp, TEST_API_KEY, type TestApp } from '../testing/app.ts';

let front: TestApp;
beforeAll(async () => {
  front = await createTestApp();
});
beforeEach(() => front.orchestrator.clear());
afterAll(() => front[Symbol.asyncDispose]());

const create = (body: object) =>
  front.app.inject({
    method: 'POST',
    url: '/v2/sandboxes',
    headers: { 'x-api-key': TEST_API_KEY },
    payload: { templateID: 'base', ...body },
  });
const get = (url: string) => front.app.inject({ method: 'GET', url, headers: { 'x-api-key': TEST_API_KEY } });

/** So many pairs whose names and values have so many bytes together. */
const pairs = (count: number, bytes: number) =>
  Object.fromEntries(
    Array.from({ length: count }, (_, index) => {
      const name = `N${index}`;
      return [name, 'v'.repeat(Math.floor(bytes / count) - name.length)];
    }),
  );

describe('what a create may hold', () => {
  it.each([
    ['metadata', { metadata: pairs(1024, 100_000) }],
    ['one large value of metadata', { metadata: { a: 'x'.repeat(65_536) } }],
    ['variables', { envVars: pairs(4096, 200_000) }],
    ['variables with many bytes', { envVars: pairs(8, 256 * 1024) }],
    ['rules', { network: { denyOut: Array.from({ length: 1000 }, (_, index) => `1.1.${index >> 8}.${index & 255}`) } }],
  ])('%s up to the limit', async (_what, body) => {
    const response = await create(body);
    expect(response.statusCode, response.body).toBe(201);
  });

  it.each([
    ['metadata', { metadata: pairs(1025, 100_000) }],
    ['metadata.a', { metadata: { a: 'x'.repeat(65_537) } }],
    ['metadata', { metadata: { ['k'.repeat(1025)]: '' } }],
    ['metadata must not have more than 262144 bytes in all', { metadata: pairs(8, 256 * 1024 + 8) }],
    // Bytes, not characters.
    [
      'metadata must not have more than 262144 bytes in all',
      { metadata: { a: '€'.repeat(50_000), b: '€'.repeat(50_000) } },
    ],
    ['envVars', { envVars: pairs(4097, 100_000) }],
    ['envVars.A', { envVars: { A: 'x'.repeat(32_769) } }],
    ['envVars', { envVars: { ['K'.repeat(1025)]: '' } }],
    ['envVars must not have more than 262144 bytes in all', { envVars: pairs(9, 256 * 1024 + 9) }],
    ['network.denyOut', { network: { denyOut: Array.from({ length: 1001 }, () => '1.1.1.1') } }],
    ['network.denyOut.0', { network: { denyOut: ['x'.repeat(256)] } }],
    ['templateID', { templateID: 'x'.repeat(513) }],
  ])('%s beyond it is refused by name', async (message, body) => {
    const response = await create(body);
    expect(response.statusCode).toBe(400);
    expect(response.json().message).toContain(message);
    expect(response.body.length).toBeLessThan(500);
    expect(front.orchestrator.calls).toEqual([]);
  });
});

describe('what a query may hold', () => {
  it.each([
    ['/v2/sandboxes?metadata=', 'metadata', 16_384],
    ['/v2/sandboxes?template=', 'template', 512],
    ['/v2/sandboxes?nextToken=', 'nextToken', 256],
    ['/v2/sandboxes?startedAfter=', 'startedAfter', 64],
    ['/templates?teamID=', 'teamID', 256],
    ['/nodes?clusterID=', 'clusterID', 256],
  ])('%s… of more than its limit is refused by name', async (url, name, limit) => {
    const response = await get(url + 'x'.repeat(limit + 1));
    expect(response.statusCode).toBe(400);
    expect(response.json().message).toContain(name);
  });

  it('states are few', async () => {
    const response = await get(`/v2/sandboxes?state=${'running,'.repeat(17)}`);
    expect(response.statusCode).toBe(400);
    expect(response.json().message).toContain('state');
  });

  it('an id longer than any is unknown or refused, never a failure', async () => {
    expect((await get(`/sandboxes/${'x'.repeat(1024)}`)).statusCode).toBe(404);
    for (const length of [1025, 8_000]) {
      const response = await get(`/sandboxes/${'x'.repeat(length)}/logs`);
      expect([400, 404, 414]).toContain(response.statusCode);
      expect(response.json().code).toBe(response.statusCode);
    }
  });
});
