import { PlatformError, type SandboxId } from '@agentenv/core';
import { sandboxRecord } from '@agentenv/core/testing';
import type { InjectOptions } from 'fastify';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestApp, TEST_API_KEY, type TestApp } from '../testing/app.ts';

let front: TestApp;
beforeAll(async () => {
  front = await createTestApp();
});
beforeEach(() => front.orchestrator.clear());
afterAll(() => front[Symbol.asyncDispose]());

const call = (method: 'GET' | 'POST' | 'DELETE', url: string, options: InjectOptions = {}) =>
  front.app.inject({ method, url, ...options, headers: { 'x-api-key': TEST_API_KEY, ...options.headers } });
const create = (url: string, body: object) => call('POST', url, { payload: body });

describe('create', () => {
  it('answers exactly the fields clients need', async () => {
    const response = await create('/v2/sandboxes', { templateID: 'base' });
    expect(response.statusCode).toBe(201);
    const body = response.json();
    expect(body).toEqual({
      templateID: expect.any(String),
      sandboxID: expect.stringMatching(/^i[a-z0-9]{20}$/),
      clientID: 'agentenv',
      envdVersion: '0.6.13',
      alias: 'base',
      envdAccessToken: expect.stringMatching(/^[0-9a-f]{64}$/),
      trafficAccessToken: null,
    });
    expect(response.headers['x-agentenv-sandbox-id']).toBe(body.sandboxID);
  });

  it('names the domain when one is configured', async () => {
    await using withDomain = await createTestApp({ domains: ['sandboxes.test', 'other.test'] });
    const response = await withDomain.app.inject({
      method: 'POST',
      url: '/sandboxes',
      headers: { 'x-api-key': TEST_API_KEY },
      payload: { templateID: 'base' },
    });
    expect(response.json()).toMatchObject({ domain: 'sandboxes.test' });
  });

  it('gives v1 15 s and no token, v2 300 s and always a token', async () => {
    const v1 = await create('/sandboxes', { templateID: 'base' });
    expect(v1.json()).not.toHaveProperty('envdAccessToken');
    const v2 = await create('/v2/sandboxes', { templateID: 'base', secure: false });
    expect(v2.json()).toHaveProperty('envdAccessToken');
    const secureV1 = await create('/sandboxes', { templateID: 'base', secure: true, timeout: 60 });
    expect(secureV1.json()).toHaveProperty('envdAccessToken');
    expect(front.orchestrator.calls.map(({ arguments: [request] }) => request)).toMatchObject([
      { timeoutSeconds: 15, secure: false },
      { timeoutSeconds: 300, secure: true },
      { timeoutSeconds: 60, secure: true },
    ]);
  });

  it('passes on everything a client of today sends', async () => {
    const response = await create('/sandboxes', {
      templateID: 'base',
      timeout: 10,
      secure: true,
      allow_internet_access: false,
      metadata: { 'k 1': 'v&=1' },
      envVars: { A: 'b' },
      network: {
        ...{ allowOut: ['1.1.1.1', '2001:db8::/32'], denyOut: ['0.0.0.0/0'], allowPublicTraffic: false },
        // biome-ignore lint/suspicious/noTemplateCurlyInString: this is what clients write
        maskRequestHost: 'localhost:${PORT}',
      },
      autoPause: false,
      autoPauseMemory: true,
      autoResume: { enabled: false },
      volumeMounts: [],
      mcp: null,
      iam: { tokens: {} },
      somethingNew: { nobody: 'knows' },
    });
    expect(response.statusCode).toBe(201);
    expect(response.json().trafficAccessToken).toMatch(/^[0-9a-f]{64}$/);
    expect(front.orchestrator.calls).toEqual([
      {
        method: 'create',
        arguments: [
          {
            template: 'base',
            timeoutSeconds: 10,
            onTimeout: 'kill',
            timeoutKeeps: 'full',
            autoResume: false,
            secure: true,
            network: {
              allowInternetAccess: false,
              allowOut: ['1.1.1.1/32', '2001:db8::/32'],
              denyOut: ['0.0.0.0/0'],
              allowPublicTraffic: false,
              // biome-ignore lint/suspicious/noTemplateCurlyInString: this is what clients write
              maskRequestHost: 'localhost:${PORT}',
            },
            metadata: { 'k 1': 'v&=1' },
            envVars: { A: 'b' },
          },
        ],
      },
    ]);
  });

  it.each([
    ['no UTF-8', Buffer.from('{"templateID":"base","metadata":{"a":"\xff"}}', 'latin1')],
    ['half a character', '{"templateID":"base","metadata":{"a":"\\uD800"}}'],
  ])('refuses text that is %s instead of changing it', async (_what, payload) => {
    const headers = { 'x-api-key': TEST_API_KEY, 'content-type': 'application/json' };
    const response = await front.app.inject({ method: 'POST', url: '/v2/sandboxes', headers, payload });
    expect(response.statusCode).toBe(400);
    expect(response.json().message).toMatch(/UTF-8|half a character/);
    expect(front.orchestrator.calls).toEqual([]);
  });

  it('takes null for every optional field', async () => {
    const body = {
      templateID: 'base',
      timeout: null,
      secure: null,
      metadata: null,
      envVars: null,
      network: null,
      autoPause: null,
      autoPauseMemory: null,
      autoResume: null,
      allow_internet_access: null,
      volumeMounts: null,
      iam: null,
      mcp: null,
      customExtensionParams: null,
    };
    expect((await create('/sandboxes', body)).statusCode).toBe(201);
    expect((await create('/v2/sandboxes', body)).statusCode).toBe(201);
  });

  const refused: readonly (readonly [message: string, body: object])[] = [
    ['templateID is required', {}],
    ['templateID must be of type string', { templateID: 7 }],
    ['timeout must be greater than 0', { timeout: 0 }],
    ['timeout must be greater than 0', { timeout: -5 }],
    ['timeout must be of type integer or null', { timeout: 1.5 }],
    ['timeout must be of type integer or null', { timeout: '10' }],
    ['timeout cannot be greater than 24 hours', { timeout: 86_401 }],
    [
      'autoPauseMemory: false cannot be combined with autoResume',
      { autoPause: true, autoPauseMemory: false, autoResume: { enabled: true } },
    ],
    ['autoPauseMemory: false needs autoPause: true', { autoPauseMemory: false }],
    ['not supported: mcp', { mcp: { exa: { apiKey: 'x' } } }],
    ['not supported: iam', { iam: { tokens: { a: { audience: 'b', tokenType: 'JWT-SVID' } } } }],
    ['not supported: volumeMounts', { volumeMounts: [{ name: 'vol', path: '/mnt/x' }] }],
    ['not supported: attachedDrives', { attachedDrives: [{ driveID: 'd' }] }],
    ['customExtensionParams must be of type object or null', { customExtensionParams: [1] }],
    ['customExtensionParams must be of type object or null', { customExtensionParams: 'text' }],
    ['not supported: network.rules', { network: { rules: { 'a.test': [{ transform: {} }] } } }],
    ['not supported: network.egressProxy', { network: { egressProxy: { address: 'a:1' } } }],
    ['not supported: network.httpsPorts', { network: { httpsPorts: [8443] } }],
    [
      'network.maskRequestHost must be a host with or without a port',
      { network: { maskRequestHost: 'm\u00fcller.test' } },
    ],
    [
      'network.maskRequestHost must be a host with or without a port',
      { network: { maskRequestHost: 'a.test\r\nx: y' } },
    ],
    ['network.maskRequestHost must be a host with or without a port', { network: { maskRequestHost: '' } }],
    ["not supported: network.allowOut with the domain '*.example.com'", { network: { allowOut: ['*.example.com'] } }],
    ["network.denyOut: 'example.com' is not an IP address or CIDR", { network: { denyOut: ['example.com'] } }],
    ["network.allowOut: '1.2.3.4/33' is not an IP address or CIDR", { network: { allowOut: ['1.2.3.4/33'] } }],
    ['network.allowOut.0 must be of type string', { network: { allowOut: [1] } }],
    ['metadata.a must be of type string', { metadata: { a: 1 } }],
    ['envVars.a must be of type string', { envVars: { a: 1 } }],
    ['envVars has the invalid name "A=B"', { envVars: { 'A=B': 'x' } }],
    ['envVars.A has characters that are not allowed', { envVars: { A: 'x\u0000y' } }],
  ];
  it.each(refused)('refuses with 400: %s', async (message, body) => {
    const whole = message.startsWith('templateID') ? body : { templateID: 'base', ...body };
    for (const url of ['/sandboxes', '/v2/sandboxes']) {
      const response = await create(url, whole);
      expect(response.json()).toEqual({ code: 400, message });
      expect(response.statusCode).toBe(400);
    }
    expect(front.orchestrator.calls).toEqual([]);
  });

  it('refuses private traffic without secure on v1 only', async () => {
    const body = { templateID: 'base', network: { allowPublicTraffic: false } };
    expect((await create('/sandboxes', body)).json()).toEqual({
      code: 400,
      message: 'network.allowPublicTraffic: false needs secure: true',
    });
    expect((await create('/v2/sandboxes', body)).statusCode).toBe(201);
  });

  it('answers 404 for an unknown template', async () => {
    const response = await create('/v2/sandboxes', { templateID: 'nope' });
    expect(response.statusCode).toBe(404);
    expect(response.json()).toEqual({ code: 404, message: "template 'nope' not found" });
  });

  it('answers a full host with 429, the limit and whole seconds to wait', async () => {
    front.orchestrator.failNext(
      new PlatformError('capacity', 'no capacity on this host: orchestrator.max_sandboxes', { retryAfterSeconds: 4.2 }),
    );
    const response = await create('/v2/sandboxes', { templateID: 'base' });
    expect(response.statusCode).toBe(429);
    expect(response.headers['retry-after']).toBe('5');
    expect(response.json()).toEqual({
      code: 429,
      message: 'no capacity on this host: orchestrator.max_sandboxes',
      error_code: 'sandbox_capacity_unavailable',
    });
  });

  it('says nothing about the inside when something breaks', async () => {
    front.orchestrator.failNext(new TypeError('secret internals of e2b_key'));
    const response = await create('/v2/sandboxes', { templateID: 'base' });
    expect(response.statusCode).toBe(500);
    expect(response.json()).toEqual({ code: 500, message: 'internal error', error_code: 'internal_server_error' });
  });
});

describe('get and delete', () => {
  it('answers a detail with everything', async () => {
    const record = sandboxRecord({
      id: 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId,
      metadata: { a: 'b' },
      network: {
        allowInternetAccess: false,
        allowOut: ['1.1.1.1/32'],
        denyOut: [],
        allowPublicTraffic: true,
        maskRequestHost: 'app.test',
      },
    });
    front.orchestrator.put(record);
    const response = await call('GET', `/sandboxes/${record.id}`);
    expect(response.statusCode).toBe(200);
    expect(response.json()).toEqual({
      templateID: record.templateId,
      sandboxID: record.id,
      clientID: 'agentenv',
      alias: 'base',
      startedAt: '2026-01-01T00:00:00.000Z',
      endAt: '2026-01-01T00:05:00.000Z',
      cpuCount: 2,
      memoryMB: 1024,
      diskSizeMB: 10_240,
      metadata: { a: 'b' },
      state: 'running',
      envdVersion: '0.6.13',
      envdAccessToken: front.orchestrator.accessToken(record),
      allowInternetAccess: false,
      network: { allowOut: ['1.1.1.1/32'], denyOut: [], allowPublicTraffic: true, maskRequestHost: 'app.test' },
      lifecycle: { onTimeout: 'kill', autoResume: false },
    });
  });

  it('answers null for internet access that was never set, and no network without rules', async () => {
    const record = sandboxRecord({ id: 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId, secure: false });
    front.orchestrator.put(record);
    const body = (await call('GET', `/sandboxes/${record.id}`)).json();
    expect(body.allowInternetAccess).toBeNull();
    expect(body).not.toHaveProperty('network');
    expect(body).not.toHaveProperty('envdAccessToken');
  });

  it('answers 404 with the code in the body for an unknown id, also an odd one', async () => {
    for (const id of ['iaaaaaaaaaaaaaaaaaaaa', 'not-a-uuid', 'a%2Fb%3Ac', '%00', 'x'.repeat(900)]) {
      for (const method of ['GET', 'DELETE'] as const) {
        const response = await call(method, `/sandboxes/${id}`);
        expect(response.statusCode).toBe(404);
        expect(response.json().code).toBe(404);
      }
    }
  });

  it('ends a sandbox once', async () => {
    const { sandboxID } = (await create('/v2/sandboxes', { templateID: 'base' })).json();
    const first = await call('DELETE', `/sandboxes/${sandboxID}`);
    expect(first.statusCode).toBe(204);
    expect(first.body).toBe('');
    expect((await call('DELETE', `/sandboxes/${sandboxID}`)).statusCode).toBe(404);
    expect((await call('GET', '/v2/sandboxes')).json()).toEqual([]);
  });
});

describe('connect, timeout and refreshes', () => {
  let id: string;
  beforeEach(async () => {
    id = (await create('/v2/sandboxes', { templateID: 'base' })).json().sandboxID;
    front.orchestrator.calls.length = 0;
  });
  const lastArguments = () => front.orchestrator.calls.at(-1)?.arguments;

  it('connects with the default of the route when the body is absent, empty, {} or null', async () => {
    const bodies: InjectOptions[] = [
      {},
      { payload: '', headers: { 'content-type': 'application/json' } },
      { payload: {} },
      { payload: 'null', headers: { 'content-type': 'application/json' } },
      { payload: { timeout: null } },
    ];
    for (const [url, seconds] of [
      [`/sandboxes/${id}/connect`, 15],
      [`/v2/sandboxes/${id}/connect`, 300],
    ] as const) {
      for (const body of bodies) {
        const response = await call('POST', url, body);
        expect(response.statusCode).toBe(200);
        expect(response.json()).toMatchObject({ sandboxID: id, envdAccessToken: expect.any(String) });
        expect(lastArguments()).toEqual([id, seconds, 'full']);
      }
    }
  });

  it('pauses, resumes and connects with the given time, with memory or without', async () => {
    for (const [memory, kind] of [
      [true, 'full'],
      [null, 'full'],
      [false, 'disk'],
    ] as const) {
      for (const [path, ...before] of [
        [`/v2/sandboxes/${id}/connect`, id, 2],
        [`/sandboxes/${id}/connect`, id, 2],
        [`/sandboxes/${id}/resume`, id, 2],
        [`/sandboxes/${id}/pause`, id],
      ] as const) {
        const { statusCode } = await call('POST', path, { payload: { timeout: 2, memory } });
        expect(statusCode).toBeLessThan(300);
        expect(lastArguments()).toEqual([...before, kind]);
      }
    }
    const refused = await call('POST', `/sandboxes/${id}/pause`, { payload: { memory: 'no' } });
    expect(refused.json()).toEqual({ code: 400, message: 'memory must be of type boolean or null' });
    for (const timeout of [0, -1, 86_401, 'x']) {
      expect((await call('POST', `/v2/sandboxes/${id}/connect`, { payload: { timeout } })).statusCode).toBe(400);
    }
  });

  it('answers 201 when it had to resume', async () => {
    front.orchestrator.put(sandboxRecord({ id: id as SandboxId, state: 'paused' }));
    expect((await call('POST', `/v2/sandboxes/${id}/connect`)).statusCode).toBe(201);
  });

  it('pauses at the timeout when it is asked for, or when the server does so unless asked otherwise', async () => {
    const onTimeout = async (target: TestApp, payload: object) => {
      const headers = { 'x-api-key': TEST_API_KEY };
      await target.app.inject({
        method: 'POST',
        url: '/v2/sandboxes',
        headers,
        payload: { templateID: 'base', ...payload },
      });
      const created = target.orchestrator.calls.at(-1)?.arguments[0] as { onTimeout: string } | undefined;
      return created?.onTimeout;
    };
    expect(await onTimeout(front, { autoPause: true, autoPauseMemory: true })).toBe('pause');
    expect(front.orchestrator.calls.at(-1)?.arguments[0]).toMatchObject({ timeoutKeeps: 'full' });
    expect(await onTimeout(front, { autoPause: true, autoPauseMemory: false })).toBe('pause');
    expect(front.orchestrator.calls.at(-1)?.arguments[0]).toMatchObject({ timeoutKeeps: 'disk' });
    expect(await onTimeout(front, {})).toBe('kill');
    expect(front.orchestrator.calls.at(-1)?.arguments[0]).toMatchObject({ autoResume: false });
    await onTimeout(front, { autoPause: true, autoResume: { enabled: true } });
    expect(front.orchestrator.calls.at(-1)?.arguments[0]).toMatchObject({ autoResume: true, onTimeout: 'pause' });
    await using pausing = await createTestApp({ autoPause: true });
    expect(await onTimeout(pausing, {})).toBe('pause');
    expect(await onTimeout(pausing, { autoPause: null })).toBe('pause');
    expect(await onTimeout(pausing, { autoPauseMemory: false })).toBe('pause');
    expect(pausing.orchestrator.calls.at(-1)?.arguments[0]).toMatchObject({ timeoutKeeps: 'disk' });
    expect(await onTimeout(pausing, { autoPause: false })).toBe('kill');
  });

  it('pauses and answers nothing, resumes with the given time and answers the sandbox', async () => {
    for (const payload of [undefined, {}, { memory: true }]) {
      const paused = await call('POST', `/sandboxes/${id}/pause`, payload === undefined ? {} : { payload });
      expect([paused.statusCode, paused.body]).toEqual([204, '']);
    }
    const resumed = await call('POST', `/sandboxes/${id}/resume`, { payload: { timeout: 20 } });
    expect(resumed.statusCode).toBe(201);
    expect(resumed.json()).toMatchObject({ sandboxID: id, envdVersion: '0.6.13' });
    expect(lastArguments()).toEqual([id, 20, 'full']);
    await call('POST', `/sandboxes/${id}/resume`);
    expect(lastArguments()).toEqual([id, 15, 'full']);
    for (const payload of [{ timeout: 0 }, { timeout: 86_401 }, { autoPause: true }]) {
      expect((await call('POST', `/sandboxes/${id}/resume`, { payload })).statusCode).toBe(400);
    }
  });

  it('forks into as many children as asked for, 1 unless told, for 15 s, and answers each of them in its place', async () => {
    const one = await call('POST', `/sandboxes/${id}/fork`);
    expect(one.statusCode).toBe(201);
    expect(one.json()).toMatchObject([
      { sandbox: { templateID: expect.any(String), envdAccessToken: expect.any(String) } },
    ]);
    expect(one.json()[0].sandbox.sandboxID).not.toBe(id);
    expect(lastArguments()).toEqual([id, { count: 1, timeoutSeconds: 15 }]);
    const three = await call('POST', `/sandboxes/${id}/fork`, { payload: { count: 3, timeout: 70 } });
    expect(three.json().map((result: object) => Object.keys(result))).toEqual([['sandbox'], ['error'], ['sandbox']]);
    expect(three.json()[1]).toMatchObject({ error: { code: 429, message: 'the host is full' } });
    expect(lastArguments()).toEqual([id, { count: 3, timeoutSeconds: 70 }]);
    for (const [payload, message] of [
      [{ count: 0 }, 'count must be at least 1'],
      [{ count: 101 }, 'count must be at most 100'],
      [{ count: 1.5 }, 'count must be of type integer or null'],
      [{ timeout: 0 }, 'timeout must be greater than 0'],
      [{ timeout: -1 }, 'timeout must be greater than 0'],
      [{ timeout: 86_401 }, 'timeout cannot be greater than 24 hours'],
    ] as const) {
      const refused = await call('POST', `/sandboxes/${id}/fork`, { payload });
      expect([refused.statusCode, refused.json()]).toEqual([400, { code: 400, message }]);
    }
    front.orchestrator.failNext(new PlatformError('conflict', `sandbox '${id}' is paused`));
    expect((await call('POST', `/sandboxes/${id}/fork`)).statusCode).toBe(409);
  });

  it('shows a paused sandbox with the time of its pause, and answers 409 for what its state does not allow', async () => {
    const deadline = Date.UTC(2026, 0, 2);
    front.orchestrator.put(sandboxRecord({ id: id as SandboxId, state: 'paused', deadline }));
    const shown = (await call('GET', `/sandboxes/${id}`)).json();
    expect(shown).toMatchObject({ state: 'paused', endAt: new Date(deadline).toISOString() });
    front.orchestrator.failNext(new PlatformError('conflict', `sandbox '${id}' is paused`));
    const refused = await call('POST', `/sandboxes/${id}/pause`);
    expect([refused.statusCode, refused.json()]).toEqual([409, { code: 409, message: `sandbox '${id}' is paused` }]);
  });

  it('sets a timeout, 0 included, and refuses negative ones', async () => {
    for (const [body, seconds] of [
      [{ timeout: 60 }, 60],
      [{ timeout: 0 }, 0],
      [{}, 15],
    ] as const) {
      const response = await call('POST', `/sandboxes/${id}/timeout`, { payload: body });
      expect([response.statusCode, response.body]).toEqual([204, '']);
      expect(lastArguments()).toEqual([id, seconds]);
    }
    const negative = await call('POST', `/sandboxes/${id}/timeout`, { payload: { timeout: -1 } });
    expect(negative.json()).toEqual({ code: 400, message: 'timeout must be at least 0' });
  });

  it('refreshes by at least 15 s and at most an hour', async () => {
    for (const [body, seconds] of [
      [{ duration: 60 }, 60],
      [{ duration: 1 }, 15],
      [{}, 15],
    ] as const) {
      expect((await call('POST', `/sandboxes/${id}/refreshes`, { payload: body })).statusCode).toBe(204);
      expect(lastArguments()).toEqual([id, seconds]);
    }
    expect((await call('POST', `/sandboxes/${id}/refreshes`, { payload: { duration: 3601 } })).statusCode).toBe(400);
  });

  it('answers 404 and 409 as the orchestrator says', async () => {
    expect((await call('POST', '/sandboxes/inone/timeout', { payload: { timeout: 1 } })).json().code).toBe(404);
    front.orchestrator.failNext(new PlatformError('conflict', 'the sandbox is paused'));
    const response = await call('POST', `/sandboxes/${id}/timeout`, { payload: { timeout: 1 } });
    expect(response.json()).toEqual({ code: 409, message: 'the sandbox is paused' });
  });
});

describe('lists', () => {
  const sandboxes = 5;
  beforeEach(() => {
    for (let number = 0; number < sandboxes; number++) {
      front.orchestrator.put(
        sandboxRecord({
          id: `i${String(number).padStart(20, '0')}` as SandboxId,
          startedAt: Date.UTC(2026, 0, 1, 0, number),
          state: number === 4 ? 'paused' : 'running',
          metadata: { 'k 1': 'v&=1', number: String(number) },
        }),
      );
    }
  });
  const ids = (response: { json(): { sandboxID: string }[] }) =>
    response.json().map(({ sandboxID }) => Number(sandboxID.slice(1)));

  it('pages newest first and ends without a token', async () => {
    const seen: number[] = [];
    let token: string | undefined = '';
    while (token !== undefined) {
      const response = await call('GET', `/v2/sandboxes?limit=2${token && `&nextToken=${token}`}`);
      expect(response.statusCode).toBe(200);
      expect(response.headers['x-total-running']).toBe('4');
      seen.push(...ids(response));
      token = response.headers['x-next-token'] as string | undefined;
    }
    expect(seen).toEqual([4, 3, 2, 1, 0]);
  });

  it('filters by state, comma-joined or repeated, and counts running ones only when asked for', async () => {
    const paused = await call('GET', '/v2/sandboxes?state=paused');
    expect(ids(paused)).toEqual([4]);
    expect(paused.headers).not.toHaveProperty('x-total-running');
    expect(ids(await call('GET', '/v2/sandboxes?state=running'))).toEqual([3, 2, 1, 0]);
    for (const both of ['state=running,paused', 'state=running%2Cpaused', 'state=running&state=paused', 'state=', '']) {
      expect(ids(await call('GET', `/v2/sandboxes?${both}`))).toEqual([4, 3, 2, 1, 0]);
    }
  });

  it('filters by metadata, start, template and order', async () => {
    const metadata = 'metadata=k%2525201%3Dv%252526%25253D1%26number%3D2';
    expect(ids(await call('GET', `/v2/sandboxes?${metadata}`))).toEqual([2]);
    expect(ids(await call('GET', `/sandboxes?${metadata}`))).toEqual([2]);
    expect(ids(await call('GET', '/v2/sandboxes?startedAfter=2026-01-01T00%3A03%3A00.000Z'))).toEqual([4, 3]);
    expect(ids(await call('GET', '/v2/sandboxes?order=asc&limit=2'))).toEqual([0, 1]);
    expect(ids(await call('GET', '/v2/sandboxes?template=unknown'))).toEqual([]);
    expect(ids(await call('GET', '/v2/sandboxes?template=i0000000000000000base'))).toHaveLength(5);
  });

  it('lists all running ones on the old route', async () => {
    expect(ids(await call('GET', '/sandboxes'))).toEqual([3, 2, 1, 0]);
  });

  it.each([
    ['limit=0', 'limit must be at least 1'],
    ['limit=101', 'limit must be at most 100'],
    ['limit=x', 'limit must be of type integer'],
    ['limit=1&limit=2', 'limit is given more than once'],
    ['order=up', 'order must be one of asc, desc'],
    ['state=pausing', 'state.0 must be one of running, paused'],
    ['startedAfter=yesterday', 'startedAfter must be a valid date-time'],
    ['startedAfter=2016-12-31T23%3A59%3A60Z', 'startedAfter must be a valid date-time'],
    ['template=base%3Av1', 'template must be an id or a name without a tag'],
    ['nextToken=', 'invalid next token'],
    ['nextToken=bm9uc2Vuc2U', 'invalid next token'],
    ['metadata=a%25253', 'metadata: malformed percent-encoding'],
  ])('refuses %s', async (query, message) => {
    const response = await call('GET', `/v2/sandboxes?${query}`);
    expect(response.json()).toEqual({ code: 400, message });
    expect(response.statusCode).toBe(400);
  });
});
