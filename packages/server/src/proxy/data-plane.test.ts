import { once } from 'node:events';
import { Agent, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { pipeline, Readable } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import { createGzip } from 'node:zlib';
import { PlatformError, type SandboxId, type SandboxRecord } from '@agentenv/core';
import { createRealClock, sandboxRecord } from '@agentenv/core/testing';
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import type { SocketGroup } from '../orchestrator/orchestrator.ts';
import { createTestApp, TEST_API_KEY, type TestApp } from '../testing/app.ts';

const ID = 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId;
const E2B = { 'e2b-sandbox-id': ID, 'e2b-sandbox-port': '49983' };
const OWN = { 'x-agentenv-sandbox-id': ID, 'x-agentenv-target-port': '49983' };

let front: TestApp;
let port: number;
const agent = new Agent({ keepAlive: true, maxSockets: 1 });
beforeAll(async () => {
  // A refused connection is tried again, which takes a second.
  front = await createTestApp({ domains: ['sandboxes.test'], clock: createRealClock() });
  await front.app.listen({ host: '127.0.0.1', port: 0 });
  port = (front.app.server.address() as AddressInfo).port;
});
beforeEach(() => front.orchestrator.clear());
afterAll(async () => {
  agent.destroy();
  await front[Symbol.asyncDispose]();
});

interface Received {
  readonly status: number;
  readonly headers: IncomingMessage['headers'];
  readonly body: string;
}

async function send(url: string, headers: Record<string, string>, method = 'GET', body = ''): Promise<Received> {
  const outgoing = request({ host: '127.0.0.1', port, path: url, method, headers, agent });
  outgoing.end(body);
  const [response] = (await once(outgoing, 'response')) as [IncomingMessage];
  let text = '';
  for await (const chunk of response.setEncoding('utf8')) text += chunk;
  return { status: response.statusCode ?? 0, headers: response.headers, body: text };
}

type Member = Parameters<SocketGroup['add']>[0];

/** Makes `record` a running sandbox whose envd is `handle`; returns its open exchanges. */
function run(
  record: SandboxRecord,
  handle: (request: IncomingMessage, response: ServerResponse) => void = (request, response) =>
    response.end(`envd ${request.method} ${request.url}`),
): Set<Member> {
  const open = new Set<Member>();
  front.orchestrator.put(record);
  front.orchestrator.setTarget(record.id, {
    kind: 'ready',
    record,
    envd: { handle, async [Symbol.asyncDispose]() {} },
    agent: {
      async connectPort() {
        throw new PlatformError('unavailable', 'connection refused', { details: { status: 'REFUSED' } });
      },
    },
    sockets: {
      add(member) {
        open.add(member);
        member.once('close', () => open.delete(member));
      },
    },
  });
  return open;
}

describe('requests for a sandbox', () => {
  it('reach envd before any route of the control plane, without a key', async () => {
    run(sandboxRecord({ id: ID }));
    for (const path of ['/health', '/metrics', '/sandboxes', `/sandboxes/${ID}`, '/files?path=a', '/nowhere']) {
      expect(await send(path, E2B)).toMatchObject({ status: 200, body: `envd GET ${path}` });
    }
    expect((await send('/process.Process/Start', E2B, 'POST', '{}')).body).toBe('envd POST /process.Process/Start');
  });

  it('reach it by host name and by prefix', async () => {
    run(sandboxRecord({ id: ID, secure: false }));
    expect((await send('/health', { host: `49983-${ID}.sandboxes.test` })).body).toBe('envd GET /health');
    expect((await send('/proxy//files?path=%2F', OWN)).body).toBe('envd GET //files?path=%2F');
  });

  it('reach it by its token alone, as files and health of older clients do', async () => {
    const record = sandboxRecord({ id: ID, secure: true });
    run(record);
    const token = { 'x-access-token': front.orchestrator.accessToken(record) ?? '' };
    expect((await send('/files?path=a', token)).body).toBe('envd GET /files?path=a');
    expect((await send('/health', token)).status).toBe(200);
    expect((await send('/init', token, 'POST')).status).toBe(404);
    const gone = await send('/health', { 'x-access-token': 'of-a-sandbox-that-was-killed' });
    expect(gone.status).toBe(502);
    expect(JSON.parse(gone.body)).toEqual({ sandboxId: '', message: 'The sandbox was not found', code: 502 });
  });

  it('may be answered by a pipeline whose every stage watches for the end, without a warning of a leak', async () => {
    const warnings: Error[] = [];
    const onWarning = (warning: Error): void => {
      warnings.push(warning);
    };
    process.on('warning', onWarning);
    onTestFinished(() => {
      process.off('warning', onWarning);
    });
    run(sandboxRecord({ id: ID }), (_request, response) => {
      // What the guest API itself watches for while it sends a compressed file.
      for (let watcher = 0; watcher < 4; watcher++) response.once('close', () => {});
      pipeline(Readable.from(['whole']), createGzip(), response, () => {});
    });
    expect((await send('/files?path=a', E2B)).status).toBe(200);
    // Warnings come in a later turn.
    await setImmediate();
    expect(warnings).toEqual([]);
  });

  it('leave the control plane alone', async () => {
    expect((await send('/health', {})).status).toBe(204);
    expect((await send('/sandboxes', { 'x-api-key': TEST_API_KEY })).status).toBe(200);
  });
});

describe('a sandbox that is not there', () => {
  it('is told to E2B clients with exactly the 502 they look for, on every path and port', async () => {
    front.orchestrator.put(sandboxRecord({ id: 'ipausedpausedpausedpa' as SandboxId, state: 'paused' }));
    for (const id of [ID, 'ipausedpausedpausedpa', 'never-there']) {
      for (const path of ['/health', '/process.Process/List', '/sandboxes']) {
        for (const target of ['49983', '3000']) {
          const answer = await send(path, { 'e2b-sandbox-id': id, 'e2b-sandbox-port': target });
          expect(answer.status).toBe(502);
          expect(answer.headers['content-type']).toContain('application/json');
          expect(JSON.parse(answer.body)).toEqual({ sandboxId: id, message: 'The sandbox was not found', code: 502 });
        }
      }
    }
    expect((await send('/health', { host: `49983-${ID}.sandboxes.test` })).status).toBe(502);
  });

  it('is told to AgentENV clients in its own words', async () => {
    expect(await send('/health', OWN)).toMatchObject({ status: 404, body: 'sandbox not found' });
    expect(await send('/proxy/health', E2B)).toMatchObject({ status: 404, body: 'sandbox not found' });
    front.orchestrator.put(sandboxRecord({ id: ID, state: 'paused' }));
    expect(await send('/health', OWN)).toMatchObject({
      status: 410,
      body: 'sandbox is not proxyable in its current state',
    });
  });
});

describe('what a request must carry', () => {
  it('answers incomplete routing with 400 and a text', async () => {
    expect(await send('/health', { 'e2b-sandbox-id': ID })).toMatchObject({
      status: 400,
      body: 'missing target port routing header',
      headers: { 'content-type': 'text/plain; charset=utf-8' },
    });
    expect(await send('/proxy/x', {})).toMatchObject({ status: 400, body: 'missing sandbox routing header' });
  });

  it('wants the envd token from AgentENV clients of a secure sandbox and leaves it to envd for E2B clients', async () => {
    const record = sandboxRecord({ id: ID, secure: true });
    run(record);
    const token = front.orchestrator.accessToken(record) ?? '';
    expect(await send('/health', OWN)).toMatchObject({ status: 401, body: '' });
    expect(await send('/health', { ...OWN, 'x-access-token': `${token}x` })).toMatchObject({ status: 401 });
    expect(await send('/health', { ...OWN, 'x-access-token': token })).toMatchObject({ status: 200 });
    expect(await send('/health', E2B)).toMatchObject({ status: 200 });
  });

  it('wants the traffic token for other ports of a private sandbox only', async () => {
    const record = sandboxRecord({
      id: ID,
      network: { ...sandboxRecord().network, allowPublicTraffic: false },
    });
    run(record);
    const token = front.orchestrator.trafficAccessToken(record) ?? '';
    const toPort = { ...E2B, 'e2b-sandbox-port': '3000' };
    const refused = await send('/', toPort);
    expect(refused.status).toBe(403);
    expect(JSON.parse(refused.body)).toMatchObject({ sandboxId: ID, code: 403, message: expect.any(String) });
    expect((await send('/', { ...toPort, 'e2b-traffic-access-token': 'wrong' })).status).toBe(403);
    const allowed = await send('/', { ...toPort, 'e2b-traffic-access-token': token });
    expect(JSON.parse(allowed.body)).toEqual({
      ...{ sandboxId: ID, port: 3000, code: 502 },
      message: 'The sandbox is running but port is not open',
    });
    expect(await send('/', { ...OWN, 'x-agentenv-target-port': '3000' })).toMatchObject({ status: 401, body: '' });
    expect((await send('/health', E2B)).status).toBe(200);
  });

  it('keeps the paths of the platform from everybody', async () => {
    run(sandboxRecord({ id: ID, secure: false }));
    for (const path of [
      '/init',
      '/init?x=1',
      '//init/',
      '/freeze',
      '/unfreeze',
      '/collapse',
      '/fsfreeze',
      '/fsthaw',
      '/upgrade',
    ]) {
      const answer = await send(path, E2B, 'POST');
      expect(JSON.parse(answer.body)).toEqual({ message: 'not found', code: 404 });
      expect(answer.status).toBe(404);
    }
  });
});

describe('the end of a sandbox', () => {
  it('resets the exchanges under way', async () => {
    const open = run(sandboxRecord({ id: ID }), (_request, response) => {
      response.writeHead(200);
      response.write('the first half');
    });
    const outgoing = request({ host: '127.0.0.1', port, path: '/process.Process/Start', headers: E2B });
    outgoing.end();
    const [response] = (await once(outgoing, 'response')) as [IncomingMessage];
    // The reset shows on the request as well; the answer is what is looked at.
    outgoing.on('error', () => {});
    await once(response, 'data');
    const failed = once(response, 'error') as Promise<[NodeJS.ErrnoException]>;
    for (const member of open) member.destroy();
    const [error] = await failed;
    expect(error.code).toBe('ECONNRESET');
  });

  it('does not touch a connection that has gone on to something else', async () => {
    const open = run(sandboxRecord({ id: ID }));
    await send('/health', E2B);
    // The next answer on the same connection proves that the exchange before it is over on the server too.
    expect((await send('/health', {})).status).toBe(204);
    expect(open.size).toBe(0);
  });
});

describe('metrics', () => {
  it('tells the ways in apart and has no ids', async () => {
    run(sandboxRecord({ id: ID, secure: false }));
    await send('/health', E2B);
    await send('/proxy/health', OWN);
    await send('/health', { host: `49983-${ID}.sandboxes.test` });
    const { body } = await send('/metrics', {});
    for (const source of ['proxy_header', 'proxy_prefix', 'proxy_host']) {
      expect(body).toMatch(new RegExp(`method="GET",route="sandbox",route_source="${source}",status="2xx"`));
    }
    expect(body).not.toContain(ID);
  });
});
