import { createConnection } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type EnvdFixture, startEnvd } from './testing/envd-fixture.ts';
import { createRpcClient, type RpcClient } from './testing/rpc-client.ts';

let envd: EnvdFixture;
let rpc: RpcClient;

beforeAll(async () => {
  envd = await startEnvd({ envVars: { A: 'b' } });
  rpc = createRpcClient(envd.port);
});
afterAll(async () => {
  await envd[Symbol.asyncDispose]();
});

const NO_TOKEN = { 'x-access-token': [] };
const UNAUTHORIZED = {
  code: 401,
  message: 'unauthorized access, please provide a valid access token or method signing if supported',
};

describe('routes', () => {
  test('health is an empty 204 for everybody', async () => {
    const answer = await envd.request('/health', { headers: NO_TOKEN });
    expect(answer.status).toBe(204);
    expect(answer.body).toHaveLength(0);
  });

  test.each([
    ['GET', '/no/such/path', 404],
    ['POST', '/init', 404],
    ['POST', '/freeze', 404],
    ['POST', '/upgrade', 404],
    ['POST', '/process.Process/NoSuchMethod', 404],
    ['GET', '//health', 404],
    ['PUT', '/files', 405],
    ['POST', '/health', 405],
    ['GET', '/process.Process/List', 405],
    ['GET', '/files/compose', 405],
    ['POST', '/files/compose', 400],
  ])('%s %s is a %i with a JSON body', async (method, path, status) => {
    const answer = await envd.request(path, { method });
    expect(answer.status).toBe(status);
    expect(answer.headers['content-type']).toBe('application/json; charset=utf-8');
    expect(JSON.parse(answer.body.toString())).toEqual({ code: status, message: expect.any(String) });
  });

  test('a wrong method names the right ones', async () => {
    expect((await envd.request('/files', { method: 'DELETE' })).headers.allow).toBe('GET, HEAD, POST');
  });

  test('metrics have bytes and seconds', async () => {
    const answer = await envd.request('/metrics');
    const body = JSON.parse(answer.body.toString());
    expect(Object.keys(body).sort()).toEqual([
      'cpu_count',
      'cpu_used_pct',
      'disk_total',
      'disk_used',
      'mem_cache',
      'mem_total',
      'mem_total_mib',
      'mem_used',
      'mem_used_mib',
      'ts',
    ]);
    expect(Math.abs(body.ts - Date.now() / 1000)).toBeLessThan(5);
    expect(body.mem_total_mib).toBe(Math.round(body.mem_total / 1024 / 1024));
    expect(body.mem_used).toBeLessThan(body.mem_total);
  });

  test('envs are the global variables, never cached', async () => {
    const answer = await envd.request('/envs');
    expect(answer.headers['cache-control']).toBe('no-store');
    expect(JSON.parse(answer.body.toString())).toEqual({
      A: 'b',
      E2B_SANDBOX: 'true',
      E2B_SANDBOX_ID: 'itest',
      E2B_TEMPLATE_ID: 'base',
    });
  });
});

describe('access token', () => {
  test.each(['/metrics', '/envs', '/files/compose', '/no/such/path', '/init'])('guards %s', async (path) => {
    for (const headers of [NO_TOKEN, { 'x-access-token': 'wrong' }, { 'x-access-token': '' }]) {
      const answer = await envd.request(path, { headers });
      expect(answer.status).toBe(401);
      expect(JSON.parse(answer.body.toString())).toEqual(UNAUTHORIZED);
    }
  });

  test('guards RPCs before anything, with a plain 401 even for streams', async () => {
    const unary = await rpc.unary('process.Process/List', {}, { 'x-access-token': 'wrong' });
    expect(unary).toEqual({ status: 401, json: UNAUTHORIZED });
    const headers = { 'content-type': 'application/connect+json', 'x-access-token': 'wrong' };
    const stream = await envd.request('/process.Process/Start', { method: 'POST', headers, body: 'x' });
    expect(stream.status).toBe(401);
    expect(JSON.parse(stream.body.toString())).toEqual(UNAUTHORIZED);
  });

  test('a Basic header is no credential', async () => {
    const headers = { ...NO_TOKEN, authorization: `Basic ${btoa('root:')}` };
    expect(await envd.request('/envs', { headers })).toMatchObject({ status: 401 });
  });

  test('a sandbox without one guards nothing', async () => {
    await using open = await startEnvd({ accessToken: undefined });
    expect(await open.request('/envs', { headers: NO_TOKEN })).toMatchObject({ status: 200 });
    expect(await open.request('/files?path=/etc/passwd', { headers: NO_TOKEN })).toMatchObject({ status: 200 });
  });
});

describe('CORS', () => {
  test('a preflight needs no token and allows what is asked for', async () => {
    const answer = await envd.request('/process.Process/Start', {
      method: 'OPTIONS',
      headers: {
        ...NO_TOKEN,
        origin: 'https://app.example',
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'authorization,x-access-token',
      },
    });
    expect(answer).toMatchObject({
      status: 204,
      headers: {
        'access-control-allow-origin': '*',
        'access-control-allow-methods': 'HEAD, GET, POST, PUT, PATCH, DELETE',
        'access-control-allow-headers': 'authorization,x-access-token',
        'access-control-max-age': '7200',
      },
    });
  });

  test.each(['/health', '/files?path=/no/such', '/no/such'])('the answer of %s can be read by a page', async (path) => {
    const answer = await envd.request(path, { headers: { origin: 'https://app.example' } });
    expect(answer.headers['access-control-allow-origin']).toBe('*');
    expect(answer.headers['access-control-expose-headers']).toMatch(/Location, Cache-Control, X-Content-Type-Options/);
  });
});

describe('RPC over HTTP', () => {
  test.each(['text/plain', 'application/grpc', 'application/grpc-web+proto', 'application/connect+json'])(
    'content type %s of a unary call is a 415 with a JSON body',
    async (contentType) => {
      const headers = { 'content-type': contentType };
      const answer = await envd.request('/process.Process/List', { method: 'POST', headers, body: '{}' });
      expect(answer.status).toBe(415);
      expect(JSON.parse(answer.body.toString())).toMatchObject({ code: 415 });
    },
  );

  test('unknown fields are ignored, snake case is understood', async () => {
    const answer = await rpc.unary('filesystem.Filesystem/GetWatcherEvents', { watcher_id: 'w1', more: 1 });
    expect(answer).toMatchObject({ status: 404, json: { message: 'watcher with id w1 not found' } });
  });
});

describe('a sandbox that is gone', () => {
  async function withStream(act: (envd: EnvdFixture) => PromiseLike<void>) {
    await using doomed = await startEnvd();
    const socket = createConnection(doomed.port, '127.0.0.1');
    const body = JSON.stringify({ process: { cmd: 'sleep', args: ['60'] }, stdin: false });
    const frame = Buffer.alloc(5 + body.length);
    frame.writeUInt32BE(body.length, 1);
    frame.write(body, 5);
    socket.write(
      `POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nX-Access-Token: an-access-token\r\nContent-Type: application/connect+json\r\nContent-Length: ${frame.length}\r\n\r\n`,
    );
    socket.write(frame);
    let received = '';
    socket.on('data', (chunk: Buffer) => {
      received += chunk.toString('latin1');
    });
    await expect.poll(() => received).toContain('"start"');
    const failure = new Promise<Error>((resolve) => socket.once('error', resolve));
    await act(doomed);
    expect(await failure).toMatchObject({ code: 'ECONNRESET' });
    expect(received).not.toContain('"error"');
    expect(received.endsWith('0\r\n\r\n')).toBe(false);
    const health = await doomed.request('/health', { headers: NO_TOKEN });
    expect(health.status).toBe(502);
    expect(JSON.parse(health.body.toString())).toEqual({
      sandboxId: 'itest',
      message: 'The sandbox was not found',
      code: 502,
    });
  }

  test('resets open streams without an end frame when its channel is lost, and then answers 502', async () => {
    await withStream((doomed) => doomed.guest.agent[Symbol.asyncDispose]());
  });

  test('and when it is disposed', async () => {
    await withStream((doomed) => doomed.service[Symbol.asyncDispose]());
  });
});
