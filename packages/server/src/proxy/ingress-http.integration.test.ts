import type { IncomingMessage, OutgoingHttpHeaders, RequestListener } from 'node:http';
import { buffer, text } from 'node:stream/consumers';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { readAnswer, responseOf, type SendOptions, send, start } from '../testing/http-client.ts';
import { type IngressFixture, PLATFORM_KEY, SANDBOX_ID, startIngress } from '../testing/ingress-fixture.ts';

const PORT = 3000;
const E2B = { 'e2b-sandbox-id': SANDBOX_ID, 'e2b-sandbox-port': String(PORT) };
const OWN = { 'x-agentenv-sandbox-id': SANDBOX_ID, 'x-agentenv-target-port': String(PORT) };

const LONG_PATH = `/${'long'.repeat(4000)}`;

let ingress: IngressFixture;
let handle: RequestListener;
/** What the service got to see last. */
let seen: IncomingMessage;
beforeAll(async () => {
  ingress = await startIngress();
  const service = await ingress.serve(PORT, (request, response) => {
    seen = request;
    handle(request, response);
  });
  service.on('checkContinue', (request, response) => {
    seen = request;
    handle(request, response);
  });
});
beforeEach(() => {
  ingress.run();
  handle = async (request, response) => {
    const body = await buffer(request);
    response.end(`${request.method} ${body.length}`);
  };
});
afterAll(async () => {
  expect(ingress.faults()).toEqual([]);
  await ingress[Symbol.asyncDispose]();
});

const toService = (path: string, options: SendOptions & { readonly headers?: OutgoingHttpHeaders } = {}) =>
  send(ingress.port, path, { ...options, headers: { host: ingress.host(PORT), ...options.headers } });

/** The headers the service saw, by lower-case name. */
const seenHeaders = () => seen.headers;

/** Sends bytes as they are and reads what comes until the connection ends. */
async function raw(bytes: string): Promise<string> {
  const socket = await ingress.connect();
  socket.write(bytes, 'latin1');
  socket.setEncoding('latin1');
  return await text(socket);
}

describe('a port of a sandbox', () => {
  it('is reached by host name, by headers of either family and by prefix', async () => {
    handle = (request, response) => response.end(`${request.headers.host} ${request.url}`);
    const over = async (path: string, headers: Record<string, string>) =>
      (await send(ingress.port, path, { headers })).body.toString();
    expect(await over('/a', { host: ingress.host(PORT) })).toBe(`${ingress.host(PORT)} /a`);
    expect(await over('/a', { host: ingress.host(PORT).toUpperCase() })).toBe(`${ingress.host(PORT).toUpperCase()} /a`);
    expect(await over('/health', { host: 'sandbox.e2b.test', ...E2B })).toBe('sandbox.e2b.test /health');
    expect(await over('/sandboxes', { host: 'x.test', ...OWN })).toBe('localhost:3000 /sandboxes');
    expect(await over('/proxy/a', { host: 'x.test', ...E2B })).toBe('localhost:3000 /a');
    expect(await over('/proxy/x', { host: ingress.host(PORT) })).toBe(`${ingress.host(PORT)} /proxy/x`);
    expect(await over('/a', { host: 'x.test' })).toBe('control plane');
  });

  it.each(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'TRACE', 'PROPFIND', 'REPORT', 'PURGE', 'QUERY'])(
    'takes %s with and without a body',
    async (method) => {
      expect((await toService('/', { method })).body.toString()).toBe(`${method} 0`);
      const withLength = await toService('/', { method, body: 'abc', headers: { 'content-length': '3' } });
      expect(withLength.body.toString()).toBe(`${method} 3`);
      const chunked = await toService('/', { method, body: 'abcd', headers: { 'transfer-encoding': 'chunked' } });
      expect(chunked.body.toString()).toBe(`${method} 4`);
    },
  );

  it('answers HEAD with the length and without the body', async () => {
    handle = (_request, response) => response.writeHead(200, { 'content-length': 1234 }).end();
    const answer = await toService('/', { method: 'HEAD' });
    expect(answer.headers['content-length']).toBe('1234');
    expect(answer.body.length).toBe(0);
  });

  it('takes OPTIONS for the whole server, and the whole URL in the request line', async () => {
    handle = (request, response) => response.end(request.url);
    const host = ingress.host(PORT);
    expect(await raw(`OPTIONS * HTTP/1.1\r\nhost: ${host}\r\nconnection: close\r\n\r\n`)).toMatch(
      /\*(\r\n0\r\n\r\n)?$/,
    );
    const absolute = `GET http://${host}/x?y HTTP/1.1\r\nhost: elsewhere.test\r\nconnection: close\r\n\r\n`;
    expect(await raw(absolute)).toContain('/x?y');
  });

  it('does not open tunnels to elsewhere', async () => {
    const host = ingress.host(PORT);
    expect(await raw(`CONNECT ${host}:443 HTTP/1.1\r\nhost: ${host}\r\n\r\n`)).toMatch(
      /^HTTP\/1\.1 405 .*"CONNECT is not supported"/s,
    );
  });

  it.each([
    '/a%2Fb/%2e%2e/c',
    '//double//slash///',
    '/../up/./and/../down',
    '/?',
    '/?a=b&a=c&%20=+',
    "/;p=1,2!$&'()*~@:",
    '/%zz%',
    '/\\back\\slash',
    '/"quotes"|pipe^`{}',
    '/%00%0a%0d',
    LONG_PATH,
  ])('passes the path %.40s on byte for byte', async (path) => {
    handle = (request, response) => response.end(request.url);
    const answer = await raw(`GET ${path} HTTP/1.1\r\nhost: ${ingress.host(PORT)}\r\nconnection: close\r\n\r\n`);
    expect(answer).toMatch(/^HTTP\/1\.1 200 /);
    expect(seen.url).toBe(path);
  });

  it('passes bytes beyond ASCII in headers on', async () => {
    handle = (_request, response) => response.writeHead(200, { 'x-back': 'caf\xe9' }).end();
    const answer = await raw(
      `GET / HTTP/1.1\r\nhost: ${ingress.host(PORT)}\r\nx-there: \xfcber\r\nconnection: close\r\n\r\n`,
    );
    expect(answer).toContain('x-back: caf\xe9\r\n');
    expect(seenHeaders()['x-there']).toBe('\xfcber');
    // Node writes the head of a request that waits for consent in another encoding.
    handle = async (request, response) => response.end(await buffer(request));
    const waiting = `PUT / HTTP/1.1\r\nhost: ${ingress.host(PORT)}\r\nx-there: \xfcber\r\nconnection: close\r\n`;
    expect(await raw(`${waiting}expect: 100-continue\r\ncontent-length: 4\r\n\r\nbody`)).toMatch(
      /^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 200 OK\r\n.*body/s,
    );
    expect(seenHeaders()['x-there']).toBe('\xfcber');
  });

  it('passes status, reason and headers of answers on, repeated and oddly spelled ones too', async () => {
    handle = (_request, response) => {
      response.sendDate = false;
      response.writeHead(418, 'Short And Stout', ['X-B', '1', 'set-cookie', 'a=1', 'X-A', '2', 'Set-Cookie', 'b=2']);
      response.end('tea');
    };
    const answer = await toService('/');
    expect(answer.status).toBe(418);
    expect(answer.message).toBe('Short And Stout');
    expect(answer.rawHeaders.slice(0, 8)).toEqual(['X-B', '1', 'set-cookie', 'a=1', 'X-A', '2', 'Set-Cookie', 'b=2']);
    expect(answer.headers).not.toHaveProperty('date');
    expect(answer.headers).not.toHaveProperty('access-control-allow-origin');
    expect(answer.body.toString()).toBe('tea');
  });

  it.each([204, 304])('passes an answer %d without a body on', async (status) => {
    handle = (_request, response) => response.writeHead(status, { etag: '"x"' }).end();
    const answer = await toService('/');
    expect(answer).toMatchObject({ status, headers: { etag: '"x"' } });
    expect(answer.body.length).toBe(0);
  });

  it('passes errors of the service on as they are', async () => {
    handle = (_request, response) => response.writeHead(502, { 'content-type': 'text/x' }).end('mine');
    expect(await toService('/')).toMatchObject({ status: 502, headers: { 'content-type': 'text/x' } });
  });

  it('leaves compressed bodies compressed', async () => {
    const squeezed = Buffer.from('1f8b0800000000000003cb48cdc9c907008661f4be05000000', 'hex');
    handle = async (request, response) => {
      expect(await buffer(request)).toEqual(squeezed);
      response.writeHead(200, { 'content-encoding': 'gzip', 'content-length': squeezed.length }).end(squeezed);
    };
    const answer = await toService('/', { method: 'POST', body: squeezed, headers: { 'content-encoding': 'gzip' } });
    expect(answer.body).toEqual(squeezed);
    expect(answer.headers['content-encoding']).toBe('gzip');
  });

  it('passes trailers on both ways', async () => {
    handle = async (request, response) => {
      await buffer(request);
      response.writeHead(200, { trailer: 'x-sum' });
      response.write('body');
      response.addTrailers({ 'x-sum': `of ${request.trailers['x-in']}` });
      response.end();
    };
    const outgoing = start(ingress.port, '/', {
      method: 'POST',
      headers: { host: ingress.host(PORT), trailer: 'x-in', te: 'trailers', 'transfer-encoding': 'chunked' },
    });
    const answering = responseOf(outgoing);
    outgoing.write('abc');
    outgoing.addTrailers({ 'x-in': '17', host: 'forged.test' });
    outgoing.end();
    const answer = await readAnswer(await answering);
    expect(answer.body.toString()).toBe('body');
    expect(answer.rawTrailers).toEqual(['x-sum', 'of 17']);
    expect(answer.headers.trailer).toBe('x-sum');
    expect(seenHeaders().te).toBe('trailers');
    expect(seen.rawTrailers).toEqual(['x-in', '17']);
  });

  it('answers clients of HTTP/1.0, without chunks and without a host', async () => {
    handle = (_request, response) => {
      response.write('in ');
      response.end('pieces');
    };
    const routed = Object.entries(E2B)
      .map(([name, value]) => `${name}: ${value}\r\n`)
      .join('');
    const answer = await raw(`GET / HTTP/1.0\r\n${routed}expect: 100-continue\r\n\r\n`);
    expect(answer).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
    expect(answer).not.toMatch(/transfer-encoding/i);
    expect(answer).toMatch(/\r\n\r\nin pieces$/);
    expect(seenHeaders().host).toBe('localhost:3000');
    expect(seenHeaders()).not.toHaveProperty('expect');
  });

  it('serves several requests on one connection of the client, each on its own inside', async () => {
    const sockets = new Set<unknown>();
    handle = (request, response) => {
      sockets.add(request.socket);
      response.end(`for ${request.url}`);
    };
    const host = `host: ${ingress.host(PORT)}\r\n`;
    const answer = await raw(
      `GET /1 HTTP/1.1\r\n${host}\r\nGET /2 HTTP/1.1\r\n${host}\r\nGET /3 HTTP/1.1\r\n${host}connection: close\r\n\r\n`,
    );
    expect(answer.match(/for \/\d/g)).toEqual(['for /1', 'for /2', 'for /3']);
    expect(sockets.size).toBe(3);
  });

  it('serves dozens of requests sent at once on one connection, in order and without a warning of a leak', async () => {
    const warnings: Error[] = [];
    const onWarning = (warning: Error): void => {
      warnings.push(warning);
    };
    process.on('warning', onWarning);
    onTestFinished(() => {
      process.off('warning', onWarning);
    });
    handle = (request, response) => response.end(`for ${request.url};`);
    const heads = Array.from({ length: 40 }, (_, index) => {
      const last = index === 39 ? 'connection: close\r\n' : '';
      return `GET /${index} HTTP/1.1\r\nhost: ${ingress.host(PORT)}\r\n${last}\r\n`;
    });
    const answer = await raw(heads.join(''));
    expect(answer.match(/for \/\d+;/g)).toEqual(heads.map((_, index) => `for /${index};`));
    await nextTurn();
    expect(warnings).toEqual([]);
  });
});

describe('100-continue', () => {
  const headers = () => ({ host: ingress.host(PORT), expect: '100-continue', 'content-length': '4' });

  it('is the consent of the service, not ours', async () => {
    const outgoing = start(ingress.port, '/', { method: 'PUT', headers: headers() });
    const answering = responseOf(outgoing);
    let consents = 0;
    handle = async (request, response) => {
      expect(consents).toBe(0);
      response.writeContinue();
      response.end(await buffer(request));
    };
    outgoing.once('continue', () => {
      consents++;
      outgoing.end('body');
    });
    outgoing.flushHeaders();
    expect((await readAnswer(await answering)).body.toString()).toBe('body');
    expect(consents).toBe(1);
  });

  it('is not sent when the service wants no body', async () => {
    handle = (_request, response) => response.writeHead(413).end('too large');
    const outgoing = start(ingress.port, '/', { method: 'PUT', headers: headers() });
    outgoing.once('continue', () => expect.unreachable('nobody consented'));
    outgoing.flushHeaders();
    const answer = await readAnswer(await responseOf(outgoing));
    expect(answer.status).toBe(413);
    outgoing.destroy();
  });

  it('is not sent when there is no sandbox to take the body', async () => {
    const gone = { ...headers(), host: '3000-inever0000000000there.sandboxes.test' };
    const outgoing = start(ingress.port, '/', { method: 'PUT', headers: gone });
    outgoing.once('continue', () => expect.unreachable('nobody consented'));
    outgoing.flushHeaders();
    expect((await readAnswer(await responseOf(outgoing))).status).toBe(502);
    outgoing.destroy();
  });

  it('is sent for the control plane and for envd', async () => {
    for (const host of ['x.test', ingress.host(49_983)]) {
      const outgoing = start(ingress.port, '/files', { method: 'POST', headers: { ...headers(), host } });
      const answering = responseOf(outgoing);
      outgoing.once('continue', () => outgoing.end('body'));
      outgoing.flushHeaders();
      expect((await readAnswer(await answering)).status).toBe(200);
    }
  });
});

describe('interim answers', () => {
  it('are passed on, but no flood of them', async () => {
    handle = (_request, response) => {
      for (let count = 0; count < 50; count++) response.writeEarlyHints({ link: '</a.css>; rel=preload' });
      response.end('done');
    };
    const outgoing = start(ingress.port, '/', { headers: { host: ingress.host(PORT) } });
    const hints: unknown[] = [];
    outgoing.on('information', ({ statusCode, headers }) => hints.push([statusCode, headers.link]));
    outgoing.end();
    expect((await readAnswer(await responseOf(outgoing))).body.toString()).toBe('done');
    expect(hints[0]).toEqual([103, '</a.css>; rel=preload']);
    expect(hints.length).toBe(16);
  });
});

describe('headers of a request', () => {
  it('arrive in order and spelling, without those of the connection and of the platform', async () => {
    const record = ingress.orchestrator.get(SANDBOX_ID);
    ingress.run({ network: { ...record.network, allowPublicTraffic: false } });
    const token = ingress.orchestrator.trafficAccessToken(ingress.orchestrator.get(SANDBOX_ID)) ?? '';
    const headers = [
      ...['Host', ingress.host(PORT), 'X-One', '1', 'x-TWO', '2', 'X-One', 'again', 'Cookie', 'a=b', 'cookie', 'c=d'],
      ...['Connection', 'keep-alive, X-Hop', 'X-Hop', 'mine', 'Keep-Alive', 'timeout=5', 'TE', 'gzip'],
      ...['Proxy-Authorization', 'Basic x', 'Proxy-Connection', 'keep-alive', 'Upgrade-Insecure-Requests', '1'],
      ...['E2b-Sandbox-Id', SANDBOX_ID, 'E2b-Sandbox-Port', '3000', 'E2b-Traffic-Access-Token', token],
      ...['X-API-Key', PLATFORM_KEY, 'x-api-key', 'of-the-application', 'Authorization', 'Bearer app'],
      ...['X-Access-Token', 'for the service', 'User-Agent', 'curl/8'],
    ];
    expect((await send(ingress.port, '/', { headers })).status).toBe(200);
    expect(seen.rawHeaders).toEqual([
      ...['Host', ingress.host(PORT), 'X-One', '1', 'x-TWO', '2', 'X-One', 'again', 'Cookie', 'a=b', 'cookie', 'c=d'],
      ...['Upgrade-Insecure-Requests', '1', 'x-api-key', 'of-the-application', 'Authorization', 'Bearer app'],
      ...['X-Access-Token', 'for the service', 'User-Agent', 'curl/8', 'Connection', 'close'],
      ...['X-Forwarded-For', '127.0.0.1', 'X-Forwarded-Host', ingress.host(PORT), 'X-Forwarded-Proto', 'http'],
    ]);
  });

  it.each([
    ['X-API-Key', PLATFORM_KEY],
    ['Authorization', `Bearer ${PLATFORM_KEY}`],
    ['authorization', `bearer  ${PLATFORM_KEY}`],
  ])('never carry the key of the platform: %s %s', async (name, value) => {
    expect((await send(ingress.port, '/', { headers: ['Host', ingress.host(PORT), name, value] })).status).toBe(200);
    expect(seen.rawHeaders.join('\n')).not.toContain(PLATFORM_KEY);
  });

  it('say more to services reached in the way of AgentENV, and no envd token', async () => {
    await send(ingress.port, '/proxy/a%2Fb?c', {
      method: 'POST',
      headers: { host: 'front.test:8000', ...OWN, 'x-access-token': 'secret', 'x-forwarded-uri': '/forged' },
    });
    expect(seenHeaders()).not.toHaveProperty('x-access-token');
    expect(seenHeaders()).toMatchObject({
      host: 'localhost:3000',
      'x-forwarded-host': 'front.test:8000',
      'x-forwarded-proto': 'http',
      'x-forwarded-method': 'POST',
      'x-forwarded-uri': '/proxy/a%2Fb?c',
    });
  });

  it('have the host the sandbox was created with', async () => {
    const { network } = ingress.orchestrator.get(SANDBOX_ID);
    // biome-ignore lint/suspicious/noTemplateCurlyInString: this is what clients write
    const maskRequestHost = 'localhost:${PORT}';
    ingress.run({ network: { ...network, maskRequestHost } });
    await toService('/');
    expect(seenHeaders()).toMatchObject({ host: 'localhost:3000', 'x-forwarded-host': ingress.host(PORT) });
    ingress.run({ network: { ...network, maskRequestHost: 'app.internal' } });
    await send(ingress.port, '/', { headers: OWN });
    expect(seenHeaders().host).toBe('app.internal');
  });

  it('say whom a proxy connects for only if it is trusted', async () => {
    const forged = {
      'x-forwarded-for': '203.0.113.7',
      'x-forwarded-proto': 'https',
      'x-forwarded-host': 'public.test',
    };
    await toService('/', { headers: forged });
    expect(seenHeaders()).toMatchObject({ 'x-forwarded-for': '127.0.0.1', 'x-forwarded-proto': 'http' });

    await using trusting = await startIngress({ limits: { trustedProxies: ['127.0.0.0/8'] } });
    let headers: IncomingMessage['headers'] = {};
    await trusting.serve(PORT, (request, response) => {
      headers = request.headers;
      response.end();
    });
    await send(trusting.port, '/', { headers: { host: trusting.host(PORT), ...forged } });
    expect(headers).toMatchObject({ ...forged, 'x-forwarded-for': '203.0.113.7, 127.0.0.1' });
  });

  it('may be many and long, but not without bounds', async () => {
    const many = (count: number, length: number) =>
      Array.from({ length: count }, (_, index) => [`x-${index}`, 'v'.repeat(length)]).flat();
    const sendMany = (count: number, length: number) =>
      send(ingress.port, '/', { headers: ['host', ingress.host(PORT), ...many(count, length)] });
    expect((await sendMany(400, 20)).status).toBe(200);
    expect(seenHeaders()['x-399']).toBe('v'.repeat(20));
    expect((await sendMany(2, 12_000)).status).toBe(200);
    const tooMany = await sendMany(600, 1);
    expect(tooMany.status).toBe(431);
    expect(JSON.parse(tooMany.body.toString())).toMatchObject({
      code: 431,
      message: 'The request has too many headers',
    });
    expect((await sendMany(4, 10_000)).status).toBe(431);
  });
});

describe('what is no proper answer', () => {
  const cases: readonly (readonly [string, string])[] = [
    ['something that is not HTTP', 'SSH-2.0-OpenSSH_9.2\r\n'],
    ['nothing', ''],
    ['half a head', 'HTTP/1.1 200 OK\r\nx: y\r\n'],
    ['two lengths', 'HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd'],
    ['a head without end', `HTTP/1.1 200 OK\r\nx: ${'y'.repeat(100_000)}\r\n\r\n`],
    ['an upgrade nobody asked for', 'HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n'],
  ];

  let bytes = '';
  beforeAll(() =>
    ingress.listen(3100, (connection) => {
      connection.once('data', () => connection.end(bytes));
    }),
  );

  it.each(cases)('is told: %s', async (_what, sent) => {
    bytes = sent;
    const answer = await send(ingress.port, '/', { headers: { host: ingress.host(3100) } });
    expect(answer.status).toBe(502);
    expect(JSON.parse(answer.body.toString())).toEqual({
      ...{ sandboxId: SANDBOX_ID, port: 3100, code: 502 },
      message: 'The sandbox is running but the service on the port gave no proper answer',
    });
    const own = { 'x-agentenv-sandbox-id': SANDBOX_ID, 'x-agentenv-target-port': '3100' };
    expect(await send(ingress.port, '/', { headers: own })).toMatchObject({ status: 502, body: Buffer.alloc(0) });
  });

  it('breaks the connection when an answer breaks off', async () => {
    handle = (_request, response) => {
      response.writeHead(200, { 'content-length': 100 });
      response.write('the first half');
      setImmediate(() => response.destroy());
    };
    await expect(toService('/')).rejects.toThrow(/aborted|ECONNRESET/);
    handle = (_request, response) => {
      response.write('a chunk');
      setImmediate(() => response.destroy());
    };
    await expect(toService('/')).rejects.toThrow(/aborted|ECONNRESET/);
  });
});
