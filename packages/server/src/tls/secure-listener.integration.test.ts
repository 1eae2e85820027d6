import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import type { IncomingMessage, RequestListener } from 'node:http';
import { type ClientHttp2Session, connect, type OutgoingHttpHeaders } from 'node:http2';
import { Agent, request as httpsRequest } from 'node:https';
import { connect as connectTcp } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer, text } from 'node:stream/consumers';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { testClock } from '@agentenv/agent/testing';
import { createRecordingLog } from '@agentenv/core/testing';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { WebSocket, WebSocketServer } from 'ws';
import { makeCertificate } from '../testing/certificates.ts';
import { readAnswer, responseOf } from '../testing/http-client.ts';
import { type IngressFixture, SANDBOX_DOMAIN, SANDBOX_ID, startIngress } from '../testing/ingress-fixture.ts';
import type { CertificateFiles } from './certificates.ts';
import { openSecureListener, type SecureListener } from './secure-listener.ts';

const PORT = 3000;
const MIB = 2 ** 20;

let scratch: string;
let files: CertificateFiles[];
let ca: Buffer[];
let ingress: IngressFixture;
let listener: SecureListener;
let handle: RequestListener;
let seen: IncomingMessage;
const log = createRecordingLog();
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'aenv-tls-'));
  for (const name of ['wild', 'api']) await mkdir(join(scratch, name));
  files = [
    await makeCertificate(join(scratch, 'wild'), [`*.${SANDBOX_DOMAIN}`, SANDBOX_DOMAIN]),
    await makeCertificate(join(scratch, 'api'), ['api.elsewhere.test']),
  ];
  ca = await Promise.all(files.map(({ certificate }) => readFile(certificate)));
  ingress = await startIngress();
  const service = await ingress.serve(PORT, (request, response) => {
    seen = request;
    handle(request, response);
  });
  const sockets = new WebSocketServer({ server: service });
  sockets.on('connection', (client, request) => {
    seen = request;
    client.on('message', (data) => client.send(data));
  });
  listener = await openSecureListener({
    ...{ host: '127.0.0.1', port: 0, files, http: ingress.server, clock: testClock, log, checkMs: 50 },
  });
});
beforeEach(() => {
  ingress.run();
  handle = async (request, response) => response.end(await buffer(request));
});
afterAll(async () => {
  expect(ingress.faults()).toEqual([]);
  await listener[Symbol.asyncDispose]();
  await ingress[Symbol.asyncDispose]();
  await rm(scratch, { recursive: true, force: true });
});

let session: ClientHttp2Session;
/** An HTTP/2 session with the listener as `host`. */
function open(host: string): ClientHttp2Session {
  const opened = connect(`https://${host}`, {
    createConnection: () =>
      connectTls({ host: '127.0.0.1', port: listener.port, servername: host, ca, ALPNProtocols: ['h2'] }),
  });
  opened.on('error', () => {});
  return opened;
}

interface Answer {
  readonly headers: OutgoingHttpHeaders;
  readonly body: string;
}

async function ask(headers: OutgoingHttpHeaders, body?: string): Promise<Answer> {
  const stream = session.request({ ':authority': ingress.host(PORT), ...headers }, { endStream: body === undefined });
  if (body !== undefined) stream.end(body);
  const [answer] = (await once(stream, 'response')) as [OutgoingHttpHeaders];
  return { headers: answer, body: await text(stream) };
}

describe('HTTP/2 to a port of a sandbox', () => {
  beforeEach(() => {
    session = open(ingress.host(PORT));
  });
  afterEach(() => session.destroy());

  it('passes method, path, headers and body on as HTTP/1.1', async () => {
    handle = async (request, response) => {
      response.writeHead(201, ['x-a', '1', 'set-cookie', 'a=1', 'set-cookie', 'b=2', 'connection', 'close']);
      response.end(await buffer(request));
    };
    const answer = await ask(
      { ':method': 'POST', ':path': '/a//b%2Fc?d', cookie: ['a=b', 'c=d'], 'x-one': '1', te: 'trailers' },
      'hello',
    );
    expect(answer).toMatchObject({
      headers: { ':status': 201, 'x-a': '1', 'set-cookie': ['a=1', 'b=2'] },
      body: 'hello',
    });
    expect(seen).toMatchObject({ method: 'POST', url: '/a//b%2Fc?d', httpVersion: '1.1' });
    expect(seen.headers).toMatchObject({
      ...{ host: ingress.host(PORT), cookie: 'a=b; c=d', 'x-one': '1', te: 'trailers' },
      ...{ 'x-forwarded-proto': 'https', 'transfer-encoding': 'chunked' },
    });
    expect(seen.headers['x-forwarded-for']).toBe('127.0.0.1');
    expect(seen.rawHeaders.filter((name) => name.startsWith(':'))).toEqual([]);
  });

  it('passes GET and HEAD on without a body', async () => {
    handle = (request, response) => {
      response.writeHead(200, { 'content-length': '7' }).end(request.method === 'HEAD' ? undefined : 'content');
    };
    expect((await ask({ ':path': '/' })).body).toBe('content');
    expect(seen.headers).not.toHaveProperty('transfer-encoding');
    expect(await ask({ ':path': '/', ':method': 'HEAD' })).toMatchObject({
      headers: { 'content-length': '7' },
      body: '',
    });
  });

  it('carries many streams at once, each as it comes', async () => {
    const responses: Parameters<RequestListener>[1][] = [];
    handle = (_request, response) => {
      response.write('first;');
      responses.push(response);
    };
    const streams = Array.from({ length: 50 }, () => session.request({ ':path': '/' }));
    let received = '';
    for (const stream of streams) {
      stream.setEncoding('utf8').on('data', (data: string) => {
        received += data;
      });
    }
    await vi.waitUntil(() => received === 'first;'.repeat(50), { timeout: 5_000 });
    for (const response of responses) response.end('last');
    await Promise.all(streams.map((stream) => once(stream, 'end')));
    expect(received).toBe('first;'.repeat(50) + 'last'.repeat(50));
  });

  it('carries large bodies both ways with back-pressure', { timeout: 60_000 }, async () => {
    handle = (request, response) => {
      response.writeHead(200);
      request.pipe(response);
    };
    const stream = session.request({ ':method': 'POST', ':path': '/' });
    const piece = randomBytes(64 * 1024);
    let sent = 0;
    const sending = (async () => {
      for (; sent < 64 * MIB; sent += piece.length) {
        if (!stream.write(piece)) await once(stream, 'drain');
      }
      stream.end();
    })();
    await vi.waitUntil(() => sent > 0, { timeout: 5_000 });
    let before = -1;
    await vi.waitUntil(
      () => {
        const isSettled = sent === before;
        before = sent;
        return isSettled;
      },
      { interval: 300, timeout: 20_000 },
    );
    expect(sent).toBeLessThan(32 * MIB);
    let received = 0;
    for await (const data of stream) received += (data as Buffer).length;
    await sending;
    expect(received).toBe(64 * MIB);
  });

  it('passes trailers and consent on', async () => {
    handle = async (request, response) => {
      await buffer(request);
      response.writeHead(200, { trailer: 'x-sum' });
      response.write('body');
      response.addTrailers({ 'x-sum': '17' });
      response.end();
    };
    const stream = session.request({ ':method': 'POST', ':path': '/', expect: '100-continue' });
    const trailers = once(stream, 'trailers');
    await once(stream, 'continue');
    stream.end('x');
    expect(await text(stream)).toBe('body');
    expect((await trailers)[0]).toMatchObject({ 'x-sum': '17' });
  });

  it('is canceled inside when the client cancels, and the other streams go on', async () => {
    const closed = Promise.withResolvers<void>();
    handle = (request, response) => {
      if (request.url === '/cancel') request.once('close', closed.resolve);
      else void closed.promise.then(() => response.end('fine'));
    };
    const canceled = session.request({ ':path': '/cancel' });
    canceled.on('error', () => {});
    const other = ask({ ':path': '/' });
    await vi.waitUntil(() => ingress.sockets.size === 2, { timeout: 5_000 });
    canceled.close(8);
    expect((await other).body).toBe('fine');
  });

  it('shows its streams broken when the sandbox is killed, and only those', async () => {
    handle = (_request, response) => response.write('x');
    const stream = session.request({ ':path': '/' });
    await once(stream, 'data');
    const failed = once(stream, 'error');
    ingress.kill();
    expect((await failed)[0]).toMatchObject({ code: 'ERR_HTTP2_STREAM_ERROR' });
    const after = await ask({ ':path': '/' });
    expect(after.headers[':status']).toBe(502);
    expect(JSON.parse(after.body)).toMatchObject({ message: 'The sandbox was not found' });
  });

  it('shows an answer broken that breaks off inside', async () => {
    handle = (_request, response) => {
      response.write('x');
      setImmediate(() => response.destroy());
    };
    const stream = session.request({ ':path': '/' });
    await expect(text(stream)).rejects.toMatchObject({ code: 'ERR_HTTP2_STREAM_ERROR' });
  });

  it('has bounds for its headers', async () => {
    const headers = Object.fromEntries(Array.from({ length: 550 }, (_, index) => [`x-${index}`, '1']));
    expect((await ask({ ':path': '/', ...headers })).headers[':status']).toBe(431);
    const long = session.request({ ':path': '/', 'x-long': 'v'.repeat(60_000) });
    await expect(once(long, 'response').then(([answer]) => answer[':status']))
      .resolves.toBe(431)
      .catch(() => undefined);
    long.destroy();
  });

  it('reaches envd and the control plane as well', async () => {
    expect(await ask({ ':path': '/x', ':authority': ingress.host(49_983) })).toMatchObject({ body: 'envd GET /x' });
    expect(await ask({ ':path': '/x', ':authority': 'api.elsewhere.test' })).toMatchObject({ body: 'control plane' });
    const routed = { 'e2b-sandbox-id': SANDBOX_ID, 'e2b-sandbox-port': '49983' };
    expect(await ask({ ':path': '/y', ':authority': `sandbox.${SANDBOX_DOMAIN}`, ...routed })).toMatchObject({
      body: 'envd GET /y',
    });
  });

  it('does not open tunnels', async () => {
    const stream = session.request({ ':method': 'CONNECT', ':authority': 'elsewhere.test:443' });
    const [answer] = (await once(stream, 'response')) as [OutgoingHttpHeaders];
    expect(answer[':status']).toBe(405);
    stream.destroy();
  });
});

describe('HTTP/1.1 over TLS', () => {
  const get = (host: string, path = '/') =>
    httpsRequest({
      host: '127.0.0.1',
      port: listener.port,
      servername: host,
      ca,
      path,
      headers: { host },
      agent: false,
    });

  it('reaches a port of a sandbox', async () => {
    const outgoing = get(ingress.host(PORT), '/a%2F');
    outgoing.end();
    expect((await readAnswer(await responseOf(outgoing))).status).toBe(200);
    expect(seen.url).toBe('/a%2F');
    expect(seen.headers).toMatchObject({ host: ingress.host(PORT), 'x-forwarded-proto': 'https' });
  });

  it('carries WebSockets', async () => {
    const host = ingress.host(PORT);
    const agent = new Agent({ servername: host, ca });
    const client = new WebSocket(`wss://127.0.0.1:${listener.port}/`, { agent, headers: { host } });
    await once(client, 'open');
    client.send('over TLS');
    expect(String((await once(client, 'message'))[0])).toBe('over TLS');
    expect(seen.headers['x-forwarded-proto']).toBe('wss');
    const closed = once(client, 'close');
    ingress.kill();
    expect((await closed)[0]).toBe(1006);
  });

  it('shows an answer broken when the sandbox is killed', async () => {
    handle = (_request, response) => response.write('x');
    const outgoing = get(ingress.host(PORT));
    outgoing.end();
    const answer = await responseOf(outgoing);
    await once(answer, 'data');
    const read = text(answer);
    ingress.kill();
    await expect(read).rejects.toMatchObject({ code: 'ECONNRESET' });
  });

  it('lets a client end its side and still gives it its answer', async () => {
    const ended = Promise.withResolvers<void>();
    ingress.server.once('connection', (connection) => connection.once('end', ended.resolve));
    handle = (_request, response) => {
      response.write('first;');
      void ended.promise.then(() => response.end('last'));
    };
    const host = ingress.host(PORT);
    const socket = connectTls({
      ...{ host: '127.0.0.1', port: listener.port, servername: host, ca, allowHalfOpen: true },
    });
    await once(socket, 'secureConnect');
    socket.end(`GET / HTTP/1.1\r\nhost: ${host}\r\n\r\n`);
    expect(await text(socket.setEncoding('latin1'))).toMatch(/first;.*last/s);
    socket.destroy();
  });
});

describe('certificates', () => {
  async function certificateFor(servername: string | undefined): Promise<string> {
    const socket: TLSSocket = connectTls({
      ...{ host: '127.0.0.1', port: listener.port, rejectUnauthorized: false },
      ...(servername === undefined ? {} : { servername }),
    });
    await once(socket, 'secureConnect');
    const { fingerprint256 } = socket.getPeerCertificate();
    socket.destroy();
    return fingerprint256;
  }

  it('are chosen by the name that is asked for, wildcards included; the first for anybody else', async () => {
    const wild = await certificateFor(`80-x.${SANDBOX_DOMAIN}`);
    const api = await certificateFor('api.elsewhere.test');
    expect(wild).not.toBe(api);
    expect(await certificateFor(SANDBOX_DOMAIN)).toBe(wild);
    expect(await certificateFor('unknown.test')).toBe(wild);
    expect(await certificateFor(undefined)).toBe(wild);
    expect(await certificateFor(`a.b.${SANDBOX_DOMAIN}`)).toBe(wild);
  });

  it('are renewed when their files are, without touching connections', async () => {
    const former = await certificateFor(`80-x.${SANDBOX_DOMAIN}`);
    const socket = connectTls({
      ...{ host: '127.0.0.1', port: listener.port, servername: ingress.host(PORT), ca },
    });
    await once(socket, 'secureConnect');
    // Half of a renewal is logged and changes nothing.
    const key = await readFile(files[0]?.privateKey ?? '');
    await writeFile(files[0]?.privateKey ?? '', 'nonsense');
    await vi.waitUntil(() => log.find('warn', 'changed certificates cannot be used').length > 0, { timeout: 5_000 });
    expect(await certificateFor(undefined)).toBe(former);
    await writeFile(files[0]?.privateKey ?? '', key);

    await makeCertificate(join(scratch, 'wild'), [`*.${SANDBOX_DOMAIN}`, SANDBOX_DOMAIN]);
    await vi.waitFor(
      async () => {
        expect(await certificateFor(`80-x.${SANDBOX_DOMAIN}`)).not.toBe(former);
        expect(await certificateFor(undefined)).not.toBe(former);
      },
      { timeout: 5_000 },
    );
    socket.write(`GET / HTTP/1.1\r\nhost: ${ingress.host(PORT)}\r\nconnection: close\r\n\r\n`);
    expect(await text(socket.setEncoding('latin1'))).toMatch(/^HTTP\/1\.1 200 /);
  });

  it.each([
    [
      'a file that is not there',
      () => ({ certificate: '/nowhere/cert.pem', privateKey: files[1]?.privateKey ?? '' }),
      /nowhere/,
    ],
    [
      'a key of another certificate',
      () => ({ certificate: files[1]?.certificate ?? '', privateKey: files[0]?.privateKey ?? '' }),
      /key/,
    ],
    [
      'a file that is none',
      () => ({ certificate: import.meta.filename, privateKey: files[1]?.privateKey ?? '' }),
      /secure-listener/,
    ],
  ] as const)('that are %s are refused at the start, by name', async (_what, wrong, message) => {
    const opening = openSecureListener({
      ...{ host: '127.0.0.1', port: 0, files: [wrong()], http: ingress.server, clock: testClock, log },
    });
    await expect(opening).rejects.toMatchObject({ code: 'invalid_argument', message: expect.stringMatching(message) });
  });

  it('do not help when the address is taken', async () => {
    const opening = openSecureListener({
      ...{ host: '127.0.0.1', port: listener.port, files: files.slice(1), http: ingress.server, clock: testClock, log },
    });
    await expect(opening).rejects.toMatchObject({ code: 'unavailable', message: /cannot listen/ });
  });
});

describe('what is no TLS', () => {
  it('is closed and logged at debug', async () => {
    const socket = connectTcp(listener.port, '127.0.0.1');
    socket.on('error', () => {});
    socket.write('GET / HTTP/1.1\r\n\r\n');
    await once(socket, 'close');
    await vi.waitUntil(() => log.find('debug', 'a TLS handshake failed').length > 0, { timeout: 5_000 });
  });

  it('is not spoken in old versions or with unknown protocols', async () => {
    const shake = (options: object) =>
      new Promise((resolve) => {
        const socket = connectTls({ host: '127.0.0.1', port: listener.port, rejectUnauthorized: false, ...options });
        socket.once('secureConnect', () => resolve('connected'));
        socket.once('error', (error: NodeJS.ErrnoException) => resolve(error.code));
        socket.once('close', () => socket.destroy());
      });
    expect(await shake({ maxVersion: 'TLSv1.1', minVersion: 'TLSv1' })).toMatch(/^ERR_SSL|^ECONNRESET/);
    expect(await shake({ ALPNProtocols: ['spdy/1'] })).toMatch(/^ERR_SSL/);
  });
});
