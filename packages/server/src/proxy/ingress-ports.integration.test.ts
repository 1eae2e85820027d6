import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { startNativeGuest } from '@agentenv/agent/testing';
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { readAnswer, responseOf, send, start } from '../testing/http-client.ts';
import { type IngressFixture, SANDBOX_ID, startIngress } from '../testing/ingress-fixture.ts';

const MAX_CONNECTIONS = 8;
const CLOSED = 'The sandbox is running but port is not open';

let ingress: IngressFixture;
beforeAll(async () => {
  ingress = await startIngress({ limits: { maxConnections: MAX_CONNECTIONS } });
});
beforeEach(() => {
  ingress.run();
});
afterAll(async () => {
  expect(ingress.faults()).toEqual([]);
  await ingress[Symbol.asyncDispose]();
});

const to = (port: number, headers: Record<string, string> = {}) =>
  send(ingress.port, '/', { headers: { host: ingress.host(port), ...headers } });

/** Python's own HTTP server on one address, answering with the address it was reached at. */
const pythonServer = (address: string, port: number, before = ''): string => `
import http.server, socket, time
class Server(http.server.HTTPServer):
    address_family = socket.AF_INET6 if ':' in '${address}' else socket.AF_INET
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.connection.getsockname()[0].encode())
    def log_message(self, *args): pass
${before}
Server(('${address}', ${port}), Handler).serve_forever()
`;

describe('a server in the sandbox', () => {
  it.each([
    ['127.0.0.1', 8001, '127.0.0.1'],
    ['::1', 8002, '::1'],
    ['0.0.0.0', 8003, '127.0.0.1'],
    ['::', 8004, '::ffff:127.0.0.1'],
  ])('is reached on %s', async (address, port, reachedAt) => {
    // It prints before it listens; the first request may have to be tried again.
    await ingress.python(pythonServer(address, port, 'print("ready")'));
    const answer = await to(port);
    expect(answer.status).toBe(200);
    expect(answer.body.toString()).toBe(reachedAt);
    expect(answer.headers.server).toMatch(/^BaseHTTP/);
  });

  it('is reached although it is only about to listen', async () => {
    await ingress.python(pythonServer('127.0.0.1', 8005, 'print("ready"); time.sleep(0.4)'));
    expect((await to(8005)).body.toString()).toBe('127.0.0.1');
  });
});

describe('a port nobody listens on', () => {
  it('is told as JSON, to browsers as a page, to AgentENV clients in their way', async () => {
    const [json, page, own] = await Promise.all([
      to(8100),
      to(8100, { accept: 'text/html,application/xhtml+xml;q=0.9,*/*;q=0.8' }),
      send(ingress.port, '/proxy/', {
        headers: { 'x-agentenv-sandbox-id': SANDBOX_ID, 'x-agentenv-target-port': '8100' },
      }),
    ]);
    expect(json).toMatchObject({ status: 502, headers: { 'content-type': 'application/json; charset=utf-8' } });
    expect(JSON.parse(json.body.toString())).toEqual({ sandboxId: SANDBOX_ID, message: CLOSED, port: 8100, code: 502 });
    expect(page).toMatchObject({ status: 502, headers: { 'content-type': 'text/html; charset=utf-8' } });
    for (const part of ['<!doctype html>', CLOSED, SANDBOX_ID, '8100']) expect(page.body.toString()).toContain(part);
    expect(own).toMatchObject({ status: 502, body: Buffer.alloc(0) });
  });

  it('is answered in little more than the second of its attempts', async () => {
    const begin = performance.now();
    await to(8101);
    expect(performance.now() - begin).toBeGreaterThan(950);
    expect(performance.now() - begin).toBeLessThan(5_000);
  });
});

describe('the order of the checks', () => {
  it('is sandbox, token, port', async () => {
    const { network } = ingress.orchestrator.get(SANDBOX_ID);
    const closedPort = { host: ingress.host(8102) };
    ingress.run({ network: { ...network, allowPublicTraffic: false } });
    expect((await send(ingress.port, '/', { headers: closedPort })).status).toBe(403);
    const page = await send(ingress.port, '/', { headers: { ...closedPort, accept: 'text/html' } });
    expect(page.headers['content-type']).toBe('text/html; charset=utf-8');
    ingress.kill();
    const gone = await send(ingress.port, '/', { headers: closedPort });
    expect(JSON.parse(gone.body.toString())).toEqual({
      ...{ sandboxId: SANDBOX_ID, code: 502 },
      message: 'The sandbox was not found',
    });
  });

  it('lets nobody in with the key of the platform or with another token', async () => {
    const { network } = ingress.orchestrator.get(SANDBOX_ID);
    ingress.run({ secure: true, network: { ...network, allowPublicTraffic: false } });
    const record = ingress.orchestrator.get(SANDBOX_ID);
    const envdToken = ingress.orchestrator.accessToken(record) ?? '';
    for (const headers of [{ 'x-access-token': envdToken }, { 'e2b-traffic-access-token': envdToken }]) {
      expect((await to(8103, headers)).status).toBe(403);
    }
  });
});

describe('connections to one sandbox', () => {
  it('are bounded, and free again when they end', async () => {
    const responses: ServerResponse[] = [];
    await ingress.serve(8200, (_request, response) => {
      response.write('x');
      responses.push(response);
    });
    const open = await Promise.all(
      Array.from({ length: MAX_CONNECTIONS }, async () => {
        const outgoing = start(ingress.port, '/', { headers: { host: ingress.host(8200) } });
        outgoing.end();
        return await responseOf(outgoing);
      }),
    );
    const refused = await to(8200);
    expect(refused.status).toBe(429);
    expect(refused.headers['retry-after']).toBe('1');
    expect(JSON.parse(refused.body.toString())).toMatchObject({ code: 429, sandboxId: SANDBOX_ID });
    // What envd answers takes no connection inside.
    expect((await to(49_983)).status).toBe(200);
    for (const response of responses) response.end('y');
    await Promise.all(open.map(readAnswer));
    await ingress.serve(8201, (_request, response) => response.end('room'));
    await vi.waitFor(async () => expect((await to(8201)).body.toString()).toBe('room'), { timeout: 5_000 });
  });
});

describe('the end of a generation', () => {
  it('resets exchanges in every stage, after the sandbox is not found any more', async () => {
    const arrived: Promise<IncomingMessage>[] = [];
    await ingress.serve(8300, (request, response) => {
      arrived.push(new Promise((resolve) => request.once('close', () => resolve(request))));
      if (request.url === '/begun') response.write('x');
    });
    const outcomes = ['/silent', '/begun', '/upload'].map(async (path) => {
      const outgoing = start(ingress.port, path, {
        method: path === '/upload' ? 'POST' : 'GET',
        headers: {
          host: ingress.host(8300),
          ...(path === '/upload' ? { 'transfer-encoding': 'chunked' } : {}),
        },
      });
      if (path === '/upload') outgoing.write('x');
      else outgoing.end();
      return await readAnswer(await responseOf(outgoing));
    });
    // One that still looks for its port.
    outcomes.push(to(8301));
    const settled = Promise.allSettled(outcomes);
    await vi.waitUntil(() => arrived.length === 3 && ingress.sockets.size === 4, { timeout: 5_000 });
    ingress.kill();
    expect((await to(49_983)).status).toBe(502);
    for (const outcome of await settled) {
      expect(outcome).toMatchObject({ status: 'rejected', reason: { code: 'ECONNRESET' } });
    }
    await Promise.all(arrived);
  });

  it('is also the end of every connection to it: the next generation is asked on new ones', async () => {
    await ingress.serve(8302, (_request, response) => response.end('first'));
    await using other = await startNativeGuest();
    const second = createServer((_request, response) => response.end('second'));
    await other.agent.listenPort(8302, (connection) => second.emit('connection', connection));

    const socket = await ingress.connect();
    let received = '';
    socket.setEncoding('latin1').on('data', (data: string) => {
      received += data;
    });
    const ask = async (answer: string) => {
      received = '';
      socket.write(`GET / HTTP/1.1\r\nhost: ${ingress.host(8302)}\r\n\r\n`);
      await vi.waitUntil(() => received.includes('\r\n0\r\n\r\n') || /\r\n\r\n\w+$/.test(received), { timeout: 5_000 });
      expect(received).toContain(answer);
    };
    // The client keeps its connection all the time; only what is inside changes.
    await ask('first');
    ingress.run({}, other.agent);
    await ask('second');
    ingress.run();
    await ask('first');
    socket.destroy();
    await once(socket, 'close');
  });

  it('by the death of its guest breaks off what is under way', async () => {
    await using dying = await startNativeGuest();
    const service = createServer((_request, response) => response.write('x'));
    await dying.agent.listenPort(8304, (connection) => service.emit('connection', connection));
    ingress.run({}, dying.agent);
    const outgoing = start(ingress.port, '/', { headers: { host: ingress.host(8304) } });
    outgoing.end();
    const answer = await responseOf(outgoing);
    await once(answer, 'data');
    const broken = expect(readAnswer(answer)).rejects.toMatchObject({ code: 'ECONNRESET' });
    dying.kill();
    await broken;
  });

  it('whose agent is gone already is told as a sandbox that is not found', async () => {
    await using dying = await startNativeGuest();
    ingress.run({}, dying.agent);
    dying.kill();
    await dying.agent.closed;
    const answer = await to(8303);
    expect(answer.status).toBe(502);
    expect(JSON.parse(answer.body.toString())).toMatchObject({ message: 'The sandbox was not found' });
  });
});

describe('metrics', () => {
  it('count exchanges and upgrades without any id', async () => {
    await ingress.serve(8400, (_request, response) => response.writeHead(404).end());
    await to(8400);
    await vi.waitFor(
      async () => {
        const { text } = await ingress.metrics.render();
        expect(text).toContain('method="GET",route="sandbox",route_source="proxy_host",status="4xx"');
        expect(text).not.toContain(SANDBOX_ID);
      },
      { timeout: 5_000 },
    );
  });
});
