import { PlatformError, type SandboxId } from '@agentenv/core';
import { sandboxRecord } from '@agentenv/core/testing';
import type { HTTPMethods } from 'fastify';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestApp, TEST_API_KEY, TEST_TEMPLATE, type TestApp } from '../testing/app.ts';
import { loadControlPlane } from './document.ts';

const operations = loadControlPlane();
const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'] as const;
const concrete = (path: string) => path.replaceAll(/\{\w+\}/g, 'some-id');

let front: TestApp;
beforeAll(async () => {
  front = await createTestApp();
});
beforeEach(() => front.orchestrator.clear());
afterAll(() => front[Symbol.asyncDispose]());

const call = (method: HTTPMethods, url: string, headers: Record<string, string> = { 'x-api-key': TEST_API_KEY }) =>
  front.app.inject({ method: method as 'GET', url, headers });

describe('the API key', () => {
  const secured = operations.filter(({ security }) => security.length > 0);

  it.each(secured)('is needed for $method $path', async ({ method, path, security }) => {
    for (const headers of [
      {},
      { 'x-api-key': '' },
      { 'x-api-key': `${TEST_API_KEY}x` },
      { 'x-api-key': TEST_API_KEY.toUpperCase() },
      { authorization: security.includes('bearer') ? `Bearer ${TEST_API_KEY}x` : `Bearer ${TEST_API_KEY}` },
      { cookie: `x-api-key=${TEST_API_KEY}` },
    ]) {
      const response = await call(method, concrete(path), headers as Record<string, string>);
      expect(response.statusCode).toBe(401);
      expect(response.json()).toEqual({ code: 401, message: expect.stringMatching(/key/i) });
    }
  });

  it('is taken as the access token of a login, for the teams alone', async () => {
    const taking = operations.filter(({ security }) => security.includes('bearer')).map(({ id }) => id);
    expect(taking).toEqual(['listTeams']);
    for (const scheme of ['Bearer', 'bearer', 'BEARER ']) {
      const response = await call('GET', '/teams', { authorization: `${scheme} ${TEST_API_KEY}` });
      expect(response.json()).toEqual([{ teamID: 'default', name: 'default', apiKey: TEST_API_KEY, isDefault: true }]);
    }
    for (const authorization of [TEST_API_KEY, `Basic ${TEST_API_KEY}`, 'Bearer', `Bearer ${TEST_API_KEY} x`]) {
      expect((await call('GET', '/teams', { authorization })).statusCode).toBe(401);
    }
    // A wrong key is wrong, whatever else there is.
    const both = { 'x-api-key': 'wrong', authorization: `Bearer ${TEST_API_KEY}` };
    expect((await call('GET', '/teams', both)).statusCode).toBe(401);
    expect((await call('GET', '/teams')).statusCode).toBe(200);
  });

  it('is not needed for health and metrics, and a foreign authorization header does not matter', async () => {
    expect((await call('GET', '/health', {})).statusCode).toBe(204);
    expect((await call('GET', '/metrics', {})).statusCode).toBe(200);
    const headers = { 'x-api-key': TEST_API_KEY, authorization: 'Basic dXNlcjo=' };
    expect((await call('GET', '/v2/sandboxes', headers)).statusCode).toBe(200);
  });
});

describe('routes', () => {
  it.each(operations.filter(({ built }) => !built).map(({ method, path }) => [method, path] as const))(
    'answers 501 for %s %s until it is built, whatever the body',
    async (method, path) => {
      const response = await front.app.inject({
        method,
        url: concrete(path),
        headers: { 'x-api-key': TEST_API_KEY, 'content-type': 'application/octet-stream' },
        ...(method === 'GET' ? {} : { payload: 'no json' }),
      });
      expect(response.json()).toEqual({ code: 501, message: `not implemented: ${method} ${path}` });
      expect(response.statusCode).toBe(501);
    },
  );

  const paths = [...new Set(operations.map(({ path }) => path))];
  it.each(paths)('answers 405 with Allow for the other methods of %s', async (path) => {
    const known = new Set<string>(
      operations.filter((operation) => operation.path === path).map(({ method }) => method),
    );
    // A literal path may also be one of a path with placeholders, which then takes the method.
    const others = METHODS.filter((method) => !isTaken(path, method));
    for (const method of others) {
      const response = await call(method, concrete(path));
      expect(response.statusCode).toBe(405);
      expect(response.json()).toMatchObject({ code: 405 });
      const allow = String(response.headers.allow).split(', ');
      for (const method of known) expect(allow).toContain(method);
    }
  });
  const isTaken = (path: string, method: string) =>
    operations.some(
      (operation) =>
        operation.method === method && new RegExp(`^${operation.path.replaceAll(/\{\w+\}/g, '[^/]+')}$`).test(path),
    );

  it('answers 404 naming method and path for what nobody knows', async () => {
    const response = await call('POST', '/nowhere/to?go=1');
    expect(response.statusCode).toBe(404);
    expect(response.json()).toEqual({ code: 404, message: 'no route for POST /nowhere/to' });
    expect((await call('GET', `/${'x'.repeat(5000)}`)).json().message.length).toBeLessThan(300);
  });

  it('takes HEAD where it takes GET', async () => {
    expect((await call('HEAD', '/health')).statusCode).toBe(204);
    expect((await call('HEAD', '/templates')).statusCode).toBe(200);
  });

  it('keeps encoded slashes and colons of an id together', async () => {
    expect((await call('GET', '/templates/ns%2Falias%3Atag')).json()).toEqual({
      code: 404,
      message: "template 'ns/alias:tag' not found",
    });
    expect((await call('GET', '/templates/aliases/ns%2Falias%3Atag')).statusCode).toBe(404);
    expect((await call('GET', '/templates/base')).statusCode).toBe(200);
  });

  it('refuses a path that cannot be decoded', async () => {
    const response = await call('GET', '/sandboxes/%zz');
    expect(response.statusCode).toBe(400);
    expect(response.json().code).toBe(400);
  });
});

describe('bodies', () => {
  const post = (payload: string | Buffer, contentType: string | undefined, url = '/v2/sandboxes') =>
    front.app.inject({
      method: 'POST',
      url,
      headers: { 'x-api-key': TEST_API_KEY, ...(contentType === undefined ? {} : { 'content-type': contentType }) },
      payload,
    });

  it.each([
    ['is not JSON', '{"templateID":', 'application/json', 400, 'the body is not valid JSON'],
    ['is no object', '[]', 'application/json', 400, 'the body must be of type object'],
    ['is a text', '"base"', 'application/json', 400, 'the body must be of type object'],
    ['is null where it is required', 'null', 'application/json', 400, 'a JSON body is required'],
    ['is missing where it is required', '', 'application/json', 400, 'a JSON body is required'],
    ['is a form', 'templateID=base', 'application/x-www-form-urlencoded', 400, 'must be application/json'],
    ['has no type', '{"templateID":"base"}', undefined, 400, 'must be application/json'],
    ['has a broken type', '{"templateID":"base"}', 'nonsense', 400, ''],
    ['poisons prototypes', '{"templateID":"base","__proto__":{"a":1}}', 'application/json', 400, 'not valid JSON'],
    ['is too large', `{"templateID":"${'x'.repeat(1024 * 1024)}"}`, 'application/json', 413, ''],
  ])('refuses one that %s', async (_what, payload, contentType, status, message) => {
    const response = await post(payload, contentType);
    expect(response.statusCode).toBe(status);
    expect(response.json().code).toBe(status);
    expect(response.json().message).toContain(message);
  });

  it('takes JSON under its other names', async () => {
    for (const type of ['application/json; charset=utf-8', 'Application/JSON', 'application/merge-patch+json']) {
      expect((await post('{"templateID":"base"}', type)).statusCode).toBe(201);
    }
  });

  it('ignores a body where there is none to take', async () => {
    const response = await front.app.inject({
      method: 'DELETE',
      url: '/sandboxes/some-id',
      headers: { 'x-api-key': TEST_API_KEY, 'content-type': 'application/json' },
      payload: 'nonsense',
    });
    expect(response.statusCode).toBe(404);
  });
});

describe('templates', () => {
  it('answers the template in every read', async () => {
    const [template] = (await call('GET', '/templates')).json();
    expect(template).toEqual({
      templateID: 'i0000000000000000base',
      buildID: '019b76da-a800-7000-8000-00000000000b',
      buildStatus: 'ready',
      public: false,
      names: ['base'],
      aliases: ['base'],
      cpuCount: 2,
      memoryMB: 1024,
      diskSizeMB: 10_240,
      envdVersion: '0.6.13',
      createdAt: '2026-01-01T00:00:00.000Z',
      updatedAt: '2026-01-01T00:00:00.000Z',
      createdBy: null,
      lastSpawnedAt: null,
      spawnCount: 3,
      buildCount: 1,
    });
    expect((await call('GET', '/v2/templates')).json()).toEqual([template]);
    expect((await call('GET', '/templates/aliases/base')).json()).toEqual({
      templateID: template.templateID,
      public: false,
    });
    expect((await call('GET', `/templates/${template.templateID}`)).json()).toMatchObject({
      templateID: template.templateID,
      lastSpawnedAt: null,
      builds: [{ buildID: template.buildID, status: 'ready', cpuCount: 2 }],
    });
  });

  it('shows the builds of one, newest first, in pages', async () => {
    const builds = [1, 2, 3].map((number) => ({
      ...TEST_TEMPLATE,
      buildId: `019b76da-a800-7000-8000-00000000000${number}`,
      createdAt: Date.UTC(2026, 0, Math.ceil(number / 2)),
    }));
    await using built = await createTestApp({ templates: [{ ...TEST_TEMPLATE, builds }] });
    const get = (url: string) => built.app.inject({ method: 'GET', url, headers: { 'x-api-key': TEST_API_KEY } });
    const ids = (response: Awaited<ReturnType<typeof get>>) =>
      response.json().builds.map(({ buildID }: { buildID: string }) => buildID.at(-1));
    const first = await get('/templates/base?limit=2');
    expect(ids(first)).toEqual(['3', '1']);
    const second = await get(`/templates/base?limit=2&nextToken=${first.headers['x-next-token']}`);
    expect(ids(second)).toEqual(['2']);
    expect(second.headers).not.toHaveProperty('x-next-token');
    expect((await get('/templates')).json()).toMatchObject([{ templateID: TEST_TEMPLATE.id, buildCount: 3 }]);
  });

  it('pages the v2 list', async () => {
    const templates = [1, 2, 3].map((number) => ({
      id: `i0000000000000000000${number}`,
      buildId: '019b76da-a800-7000-8000-00000000000b',
      names: [],
      vcpus: 1,
      memoryMB: 512,
      diskSizeMB: 1024,
      envdVersion: '0.6.13',
      createdAt: Date.UTC(2026, 0, Math.ceil(number / 2)),
      updatedAt: 0,
      spawnCount: 0,
      lastSpawnedAt: 0,
    }));
    await using many = await createTestApp({ templates });
    const get = (url: string) => many.app.inject({ method: 'GET', url, headers: { 'x-api-key': TEST_API_KEY } });
    const first = await get('/v2/templates?limit=2');
    expect(first.json().map((template: { templateID: string }) => template.templateID)).toEqual([
      'i00000000000000000003',
      'i00000000000000000001',
    ]);
    const second = await get(`/v2/templates?limit=2&nextToken=${first.headers['x-next-token']}`);
    expect(second.json().map((template: { templateID: string }) => template.templateID)).toEqual([
      'i00000000000000000002',
    ]);
    expect(second.headers).not.toHaveProperty('x-next-token');
    expect((await get('/v2/templates?nextToken=nonsense')).json()).toEqual({
      code: 400,
      message: 'invalid next token',
    });
  });
});

describe('headers', () => {
  it('lets every origin in, errors included, and exposes what clients read', async () => {
    for (const url of ['/v2/sandboxes', '/sandboxes/unknown', '/nowhere']) {
      const response = await call('GET', url, { 'x-api-key': TEST_API_KEY, origin: 'https://app.test' });
      expect(response.headers['access-control-allow-origin']).toBe('*');
      expect(response.headers['access-control-expose-headers']).toBe('x-next-token, x-total-running, retry-after');
    }
  });

  it('answers a preflight without a key', async () => {
    const response = await call('OPTIONS', '/v2/sandboxes', {
      origin: 'https://app.test',
      'access-control-request-method': 'DELETE',
      'access-control-request-headers': 'x-api-key',
    });
    expect(response.statusCode).toBe(204);
    expect(response.headers['access-control-allow-headers']).toBe('x-api-key');
    expect(response.headers['access-control-allow-methods']).toContain('DELETE');
  });

  it('answers OPTIONS of a client that asks for nothing in particular', async () => {
    for (const headers of [{}, { origin: 'https://app.test' }] as Record<string, string>[]) {
      const response = await call('OPTIONS', '/v2/sandboxes', headers);
      expect(response.statusCode).toBe(204);
      expect(response.headers['access-control-allow-origin']).toBe('*');
    }
  });

  it.each(['unavailable', 'capacity'] as const)('says when to come back with every %s', async (code) => {
    front.orchestrator.put(sandboxRecord({ id: 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId }));
    front.orchestrator.failNext(new PlatformError(code, 'not now'));
    const response = await call('DELETE', '/sandboxes/iaaaaaaaaaaaaaaaaaaaa');
    expect(response.json()).toMatchObject({ code: response.statusCode, message: 'not now' });
    expect(response.headers['retry-after']).toBe('5');
  });

  it('gives every request an id of its own or the one the client chose', async () => {
    const first = await call('GET', '/health');
    const second = await call('GET', '/health');
    expect(first.headers['x-request-id']).not.toBe(second.headers['x-request-id']);
    const chosen = await call('GET', '/health', { 'x-request-id': 'trace-1' });
    expect(chosen.headers['x-request-id']).toBe('trace-1');
    const hostile = await call('GET', '/health', { 'x-request-id': 'x'.repeat(65) });
    expect(hostile.headers['x-request-id']).not.toContain('xx');
  });
});

describe('metrics', () => {
  it('labels requests with route templates, never with ids', async () => {
    const record = sandboxRecord({ id: 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId });
    front.orchestrator.put(record);
    await call('GET', `/sandboxes/${record.id}`);
    await call('GET', '/some/unknown/path');
    const text = (await call('GET', '/metrics')).body;
    expect(text).toContain(
      'agentenv_http_request_duration_seconds_count{method="GET",route="/sandboxes/{sandboxID}",route_source="control_plane",status="2xx",operation="getSandbox"}',
    );
    expect(text).toContain('route="unmatched"');
    expect(text).not.toContain(record.id);
    expect(text).not.toContain('unknown/path');
    expect(text).not.toContain('route="/metrics"');
  });
});

describe('health', () => {
  it('answers 503 until sandboxes can be created', async () => {
    let ready = false;
    await using starting = await createTestApp({ isReady: () => ready });
    const response = await starting.app.inject({ method: 'GET', url: '/health' });
    expect(response.statusCode).toBe(503);
    expect(response.headers['retry-after']).toBe('1');
    expect(response.json()).toEqual({ code: 503, message: 'the server is starting' });
    ready = true;
    expect((await starting.app.inject({ method: 'GET', url: '/health' })).statusCode).toBe(204);
  });
});
