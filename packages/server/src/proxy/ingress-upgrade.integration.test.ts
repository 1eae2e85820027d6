import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { type Duplex, Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { createFakeClock } from '@agentenv/core/testing';
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { WebSocket, WebSocketServer } from 'ws';
import { send } from '../testing/http-client.ts';
import { type IngressFixture, SANDBOX_ID, startIngress } from '../testing/ingress-fixture.ts';

const PORT = 3000;
/** A service that switches to a protocol of its own. */
const RAW_PORT = 3001;
const RAW_HEAD = 'Connection: Upgrade\r\nUpgrade: raw/1\r\n';

let ingress: IngressFixture;
let sockets: WebSocketServer;
/** The head of the last request to upgrade that a service saw. */
let seen: IncomingMessage;
/** What the raw service does with a connection that has switched. */
let switched: (connection: Duplex) => void;
beforeAll(async () => {
  ingress = await startIngress();
  sockets = new WebSocketServer({
    noServer: true,
    handleProtocols: (offered) => (offered.has('chat.v2') ? 'chat.v2' : false),
  });
  const service = createServer();
  service.on('upgrade', (request, socket, head) => {
    seen = request;
    if (request.url === '/refused') {
      socket.end('HTTP/1.1 401 No Way\r\nX-Why: you\r\nContent-Length: 6\r\n\r\nreason');
      return;
    }
    if (request.url === '/cut') {
      socket.write('HTTP/1.1 401 No Way\r\nContent-Length: 6\r\n\r\nrea', () => socket.destroy());
      return;
    }
    sockets.handleUpgrade(request, socket, head, (client) => sockets.emit('connection', client, request));
  });
  sockets.on('connection', (client: WebSocket) => {
    client.on('message', (data, isBinary) => client.send(data, { binary: isBinary }));
  });
  await ingress.listen(PORT, (connection) => service.emit('connection', connection));
  await ingress.listen(RAW_PORT, (connection) => {
    connection.once('data', (head: Buffer) => {
      const end = head.indexOf('\r\n\r\n') + 4;
      connection.write('HTTP/1.1 101 Off We Go\r\nConnection: upgrade\r\nUpgrade: raw/1\r\nX-Extra: 1\r\n\r\nhello;');
      if (end < head.length) connection.unshift(head.subarray(end));
      switched(connection);
    });
  });
});
beforeEach(() => {
  ingress.run();
});
afterAll(async () => {
  expect(ingress.faults()).toEqual([]);
  await ingress[Symbol.asyncDispose]();
});

function webSocket(
  path: string,
  options: { readonly headers?: Record<string, string>; readonly protocols?: string[] } = {},
) {
  const client = new WebSocket(`ws://127.0.0.1:${ingress.port}${path}`, options.protocols ?? [], {
    headers: { host: ingress.host(PORT), ...options.headers },
  });
  onTestFinished(() => client.terminate());
  return client;
}

/** A connection that asked for the protocol of the raw service, and what it received so far. */
async function rawUpgrade(behindHead = ''): Promise<{ readonly socket: Socket; readonly received: () => string }> {
  const socket = await ingress.connect();
  let received = '';
  socket.setEncoding('latin1').on('data', (data: string) => {
    received += data;
  });
  socket.write(`GET /raw HTTP/1.1\r\nhost: ${ingress.host(RAW_PORT)}\r\n${RAW_HEAD}\r\n${behindHead}`);
  return { socket, received: () => received };
}

describe('a WebSocket to a port of a sandbox', () => {
  it('carries texts, binary messages and pings both ways', async () => {
    const client = webSocket('/socket?x=%2F', { headers: { 'x-custom': 'kept', cookie: 'a=b' } });
    await once(client, 'open');
    expect(seen.url).toBe('/socket?x=%2F');
    expect(seen.headers).toMatchObject({
      host: ingress.host(PORT),
      'x-custom': 'kept',
      cookie: 'a=b',
      connection: 'Upgrade',
      upgrade: 'websocket',
      'x-forwarded-proto': 'ws',
    });
    client.send('text');
    expect(String((await once(client, 'message'))[0])).toBe('text');
    const large = Buffer.alloc(3_000_000, 7);
    client.send(large);
    const [back, isBinary] = (await once(client, 'message')) as [Buffer, boolean];
    expect(isBinary).toBe(true);
    expect(back.equals(large)).toBe(true);
    client.ping('are you there');
    expect(String((await once(client, 'pong'))[0])).toBe('are you there');
    client.close(4000, 'done');
    expect((await once(client, 'close'))[0]).toBe(4000);
    await vi.waitUntil(() => ingress.sockets.size === 0, { timeout: 5_000 });
  });

  it('agrees on a subprotocol and on compression with the service', async () => {
    const client = webSocket('/', { protocols: ['chat.v1', 'chat.v2'] });
    await once(client, 'open');
    expect(client.protocol).toBe('chat.v2');
    expect(seen.headers['sec-websocket-extensions']).toMatch(/permessage-deflate/);
  });

  it('works by headers, prefix and token as other requests do', async () => {
    const own = { host: 'x.test', 'x-agentenv-sandbox-id': SANDBOX_ID, 'x-agentenv-target-port': String(PORT) };
    await once(webSocket('/proxy/a', { headers: own }), 'open');
    expect(seen.url).toBe('/a');
    expect(seen.headers.host).toBe('localhost:3000');

    const { network } = ingress.orchestrator.get(SANDBOX_ID);
    ingress.run({ network: { ...network, allowPublicTraffic: false } });
    const [refused] = await once(webSocket('/'), 'error');
    expect(String(refused)).toContain('403');
    const token = ingress.orchestrator.trafficAccessToken(ingress.orchestrator.get(SANDBOX_ID)) ?? '';
    await once(webSocket('/', { headers: { 'e2b-traffic-access-token': token } }), 'open');
    expect(seen.headers).not.toHaveProperty('e2b-traffic-access-token');
  });

  it('is refused in the words of the service', async () => {
    const client = webSocket('/refused');
    client.on('error', () => {});
    const [, answer] = (await once(client, 'unexpected-response')) as [unknown, IncomingMessage];
    expect(answer.statusCode).toBe(401);
    expect(answer.statusMessage).toBe('No Way');
    expect(answer.headers['x-why']).toBe('you');
    expect(await text(answer)).toBe('reason');
  });

  it('shows that a refusal was cut off', async () => {
    const client = webSocket('/cut');
    client.on('error', () => {});
    const [, answer] = (await once(client, 'unexpected-response')) as [unknown, IncomingMessage];
    await expect(text(answer)).rejects.toThrow(/aborted/);
  });

  it('to a port nobody listens on, or to no sandbox, gets the answers of other requests', async () => {
    const cases: readonly (readonly [string, string])[] = [
      [ingress.host(3999), 'The sandbox is running but port is not open'],
      ['3000-inever0000000000there.sandboxes.test', 'The sandbox was not found'],
    ];
    for (const [host, message] of cases) {
      const client = webSocket('/', { headers: { host } });
      client.on('error', () => {});
      const [, answer] = (await once(client, 'unexpected-response')) as [unknown, IncomingMessage];
      expect(answer.statusCode).toBe(502);
      expect(JSON.parse(await text(answer))).toMatchObject({ message, code: 502 });
    }
  });

  it('is closed at both ends when the sandbox is killed', async () => {
    const client = webSocket('/');
    await once(client, 'open');
    const [service] = [...sockets.clients];
    const gone = once(client, 'close');
    const goneInside = service === undefined ? undefined : once(service, 'close');
    ingress.kill();
    expect((await gone)[0]).toBe(1006);
    await goneInside;
  });

  it('whose client vanishes is closed inside', async () => {
    const client = webSocket('/');
    await once(client, 'open');
    const [service] = [...sockets.clients];
    if (service === undefined) throw new Error('the service has no client');
    const goneInside = once(service, 'close');
    client.terminate();
    expect((await goneInside)[0]).toBe(1006);
  });
});

describe('any other upgrade', () => {
  it('passes bytes on that come right behind the head, on both sides', async () => {
    switched = (connection) => connection.pipe(connection);
    const { received, socket } = await rawUpgrade('early;');
    await vi.waitUntil(() => received().endsWith('hello;early;'), { timeout: 5_000 });
    expect(received()).toMatch(
      /^HTTP\/1\.1 101 Off We Go\r\nX-Extra: 1\r\nConnection: Upgrade\r\nUpgrade: raw\/1\r\n\r\nhello;/,
    );
    socket.destroy();
  });

  it('lets the client end its side and still get what comes', async () => {
    let got = '';
    switched = (connection) => {
      connection.on('data', (data: Buffer) => {
        got += data;
      });
      connection.once('end', () => connection.end(`you said ${got}`));
    };
    const { received, socket } = await rawUpgrade();
    await vi.waitUntil(() => received().endsWith('hello;'), { timeout: 5_000 });
    socket.end('everything');
    await once(socket, 'end');
    expect(received()).toMatch(/hello;you said everything$/);
    await vi.waitUntil(() => ingress.sockets.size === 0, { timeout: 5_000 });
  });

  it('lets the service end its side and still get what comes', async () => {
    const got = Promise.withResolvers<string>();
    switched = (connection) => {
      connection.end('the tail');
      text(connection).then(got.resolve, got.reject);
    };
    const { received, socket } = await rawUpgrade();
    await once(socket, 'end');
    expect(received()).toMatch(/hello;the tail$/);
    socket.end('and still');
    expect(await got.promise).toBe('and still');
  });

  it('never looks complete when the service breaks it off', async () => {
    switched = (connection) => {
      setImmediate(() => connection.destroy());
    };
    const { socket } = await rawUpgrade();
    const failed = once(socket, 'error');
    expect((await failed)[0]).toMatchObject({ code: 'ECONNRESET' });
  });

  it('carries a lot with back-pressure', { timeout: 60_000 }, async () => {
    switched = (connection) => connection.pipe(connection);
    const socket = await ingress.connect();
    socket.write(`GET /raw HTTP/1.1\r\nhost: ${ingress.host(RAW_PORT)}\r\n${RAW_HEAD}\r\n`);
    await once(socket, 'data');
    socket.pause();
    const total = 32 * 2 ** 20;
    let written = 0;
    const source = Readable.from(
      (function* () {
        for (; written < total; written += 65_536) yield Buffer.alloc(65_536, 1);
      })(),
    );
    source.pipe(socket);
    let before = -1;
    await vi.waitUntil(
      () => {
        const isSettled = written > 0 && written === before;
        before = written;
        return isSettled;
      },
      { interval: 300, timeout: 20_000 },
    );
    expect(written).toBeLessThan(total);
    let received = 0;
    for await (const data of socket) received += (data as Buffer).length;
    expect(received).toBe(total);
  });

  it('with a body is an ordinary request: the service is not asked to switch', async () => {
    let upgrade: string | undefined = 'unset';
    await ingress.serve(3002, (request, response) => {
      upgrade = request.headers.upgrade;
      request.pipe(response);
    });
    const headers = { host: ingress.host(3002), connection: 'upgrade', upgrade: 'h2c', 'content-length': '4' };
    const answer = await send(ingress.port, '/', { method: 'POST', body: 'body', headers });
    expect(answer.body.toString()).toBe('body');
    expect(upgrade).toBeUndefined();
  });

  it('asked of the control plane or of envd is ignored', async () => {
    const headers = { connection: 'upgrade', upgrade: 'websocket' };
    expect((await send(ingress.port, '/', { headers })).body.toString()).toBe('control plane');
    const toEnvd = await send(ingress.port, '/x', { headers: { host: ingress.host(49_983), ...headers } });
    expect(toEnvd.body.toString()).toBe('envd GET /x');
  });
});

describe('a handshake', () => {
  it('that is not answered in 30 s is over', async () => {
    const clock = createFakeClock();
    await using impatient = await startIngress({ clock });
    const closed = Promise.withResolvers<void>();
    await impatient.listen(PORT, (connection) => {
      connection.resume();
      connection.once('close', () => closed.resolve());
    });
    const socket = await impatient.connect();
    socket.write(`GET / HTTP/1.1\r\nhost: ${impatient.host(PORT)}\r\n${RAW_HEAD}\r\n`);
    const answer = text(socket.setEncoding('latin1'));
    await vi.waitUntil(() => clock.pendingTimers === 1, { timeout: 5_000 });
    await clock.advance(30_000);
    socket.end();
    expect(await answer).toMatch(/^HTTP\/1\.1 504 Gateway Timeout\r\n.*did not answer in time/s);
    await closed.promise;
  });

  it('and what becomes of it end after the silence that is set', async () => {
    await using impatient = await startIngress({ limits: { idleTimeoutMs: 300 } });
    const closed = Promise.withResolvers<void>();
    await impatient.listen(PORT, (connection) => {
      connection.write('HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: raw/1\r\n\r\n');
      connection.resume();
      connection.once('close', () => closed.resolve());
    });
    const socket = await impatient.connect();
    socket.write(`GET / HTTP/1.1\r\nhost: ${impatient.host(PORT)}\r\n${RAW_HEAD}\r\n`);
    const failed = once(socket, 'error');
    socket.resume();
    expect((await failed)[0]).toMatchObject({ code: 'ECONNRESET' });
    await closed.promise;
  });
});
