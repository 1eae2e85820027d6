import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { createFakeClock } from '@agentenv/core/testing';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { readAnswer, responseOf, start } from '../testing/http-client.ts';
import { type IngressFixture, SANDBOX_ID, startIngress } from '../testing/ingress-fixture.ts';

const PORT = 3000;
const MIB = 2 ** 20;
const LARGE = 200 * MIB;

let ingress: IngressFixture;
let handle: RequestListener;
beforeAll(async () => {
  ingress = await startIngress();
  await ingress.serve(PORT, (request, response) => handle(request, response));
});
beforeEach(() => {
  ingress.run();
});
afterAll(async () => {
  expect(ingress.faults()).toEqual([]);
  await ingress[Symbol.asyncDispose]();
});

const open = (options: { readonly method?: string; readonly headers?: Record<string, string> } = {}) =>
  start(ingress.port, '/', { ...options, headers: { host: ingress.host(PORT), ...options.headers } });

/** Waits for the first request of a service that answers by itself. */
function nextRequest(): Promise<{ readonly request: IncomingMessage; readonly response: ServerResponse }> {
  return new Promise((resolve) => {
    handle = (request, response) => resolve({ request, response });
  });
}

/** `total` bytes in pieces of 64 KiB. */
function* pieces(total: number): Generator<Buffer> {
  const piece = randomBytes(64 * 1024);
  for (let sent = 0; sent < total; sent += piece.length) yield piece;
}

async function digest(stream: AsyncIterable<Buffer>): Promise<{ readonly bytes: number; readonly hash: string }> {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of stream) {
    hash.update(chunk);
    bytes += chunk.length;
  }
  return { bytes, hash: hash.digest('hex') };
}

describe('bodies of 200 MB', { timeout: 120_000 }, () => {
  it('go up and come back whole, as they come', async () => {
    handle = (request, response) => {
      response.writeHead(200);
      request.pipe(response);
    };
    const outgoing = open({ method: 'POST', headers: { 'transfer-encoding': 'chunked' } });
    const answering = responseOf(outgoing);
    const sent = createHash('sha256');
    const source = Readable.from(
      (function* () {
        for (const piece of pieces(LARGE)) {
          sent.update(piece);
          yield piece;
        }
      })(),
    );
    const [received] = await Promise.all([
      answering.then((answer) => digest(answer as AsyncIterable<Buffer>)),
      pipeline(source, outgoing),
    ]);
    expect(received).toEqual({ bytes: LARGE, hash: sent.digest('hex') });
  });
});

describe('back-pressure', () => {
  it('makes a service wait for a client that does not read', async () => {
    let written = 0;
    handle = (_request, response) => {
      response.writeHead(200, { 'content-type': 'application/octet-stream' });
      const source = Readable.from(pieces(LARGE));
      source.on('data', (chunk: Buffer) => {
        written += chunk.length;
      });
      source.pipe(response);
    };
    const outgoing = open();
    outgoing.end();
    const answer = await responseOf(outgoing);
    answer.pause();
    await settled(() => written);
    expect(written).toBeGreaterThan(0);
    expect(written).toBeLessThan(32 * MIB);
    const taken = await digest(answer as AsyncIterable<Buffer>);
    expect(taken.bytes).toBe(LARGE);
  });

  it('makes a client wait for a service that does not read', async () => {
    const { request, response, outgoing } = await upload();
    request.pause();
    let written = 0;
    const source = Readable.from(pieces(LARGE));
    source.on('data', (chunk: Buffer) => {
      written += chunk.length;
    });
    source.pipe(outgoing);
    await settled(() => written);
    expect(written).toBeLessThan(32 * MIB);
    const taken = digest(request as AsyncIterable<Buffer>);
    expect((await taken).bytes).toBe(LARGE);
    response.end();
  });
});

/** Waits until a number stays as it is. */
async function settled(read: () => number): Promise<void> {
  let before = -1;
  await vi.waitUntil(
    () => {
      const now = read();
      const isSettled = now > 0 && now === before;
      before = now;
      return isSettled;
    },
    { interval: 300, timeout: 20_000 },
  );
}

/** A request with a body to come, as the service and the client have it. */
async function upload() {
  const arrived = nextRequest();
  const outgoing = open({ method: 'POST', headers: { 'transfer-encoding': 'chunked' } });
  const answering = responseOf(outgoing);
  answering.catch(() => undefined);
  outgoing.flushHeaders();
  return { ...(await arrived), outgoing, answering };
}

describe('a stream of events', () => {
  it('arrives event by event', async () => {
    const arrived = nextRequest();
    const outgoing = open({ headers: { accept: 'text/event-stream' } });
    outgoing.end();
    const { response } = await arrived;
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.flushHeaders();
    const answer = await responseOf(outgoing);
    answer.setEncoding('utf8');
    for (let count = 0; count < 5; count++) {
      // The next one is sent only when the former was read: nothing may be waiting for more.
      response.write(`data: ${count}\n\n`);
      expect(await once(answer, 'data')).toEqual([`data: ${count}\n\n`]);
    }
    response.end();
    await once(answer, 'end');
  });

  it('may go both ways at once', async () => {
    const { request, response, outgoing, answering } = await upload();
    response.writeHead(200);
    request.setEncoding('utf8');
    for (const word of ['ping', 'pong', 'ping']) {
      outgoing.write(word);
      expect(await once(request, 'data')).toEqual([word]);
      response.write(word.toUpperCase());
      const answer = (await answering).setEncoding('utf8');
      expect(await once(answer, 'data')).toEqual([word.toUpperCase()]);
    }
    outgoing.end();
    response.end();
  });
});

describe('a client that goes away', () => {
  it.each([
    ['before its answer', false],
    ['in the middle of its answer', true],
  ])('is noticed by the service %s', async (_when, hasBegun) => {
    const arrived = nextRequest();
    const outgoing = open();
    outgoing.on('error', () => {});
    outgoing.end();
    const { response } = await arrived;
    if (hasBegun) {
      const answering = responseOf(outgoing);
      response.write('x');
      (await answering).on('error', () => {});
    }
    const noticed = once(response, 'close');
    outgoing.destroy();
    await noticed;
    expect(response.writableFinished).toBe(false);
    await vi.waitUntil(() => ingress.sockets.size === 0, { timeout: 5_000 });
  });

  it('is noticed in the middle of its upload', async () => {
    const { request, outgoing } = await upload();
    outgoing.write('half');
    await once(request, 'data');
    const broken = once(request, 'error');
    outgoing.destroy();
    expect((await broken)[0]).toMatchObject({ code: 'ECONNRESET' });
  });

  it('while its connection inside is still tried leaves nothing behind', async () => {
    const outgoing = start(ingress.port, '/', { headers: { host: ingress.host(3999) } });
    outgoing.on('error', () => {});
    outgoing.end();
    await vi.waitUntil(() => ingress.sockets.size === 1, { timeout: 5_000 });
    outgoing.socket?.resetAndDestroy();
    await vi.waitUntil(() => ingress.sockets.size === 0, { timeout: 5_000 });
  });
});

describe('a client that ends its side', () => {
  const clock = createFakeClock();
  let patient: IngressFixture;
  beforeAll(async () => {
    patient = await startIngress({ clock });
    await patient.serve(PORT, (request, response) => handle(request, response));
  });
  afterAll(() => patient[Symbol.asyncDispose]());

  async function ask(host: string) {
    const arrived = nextRequest();
    const socket = await patient.connect();
    let received = '';
    socket.setEncoding('latin1').on('data', (data: string) => {
      received += data;
    });
    socket.end(`GET / HTTP/1.1\r\nhost: ${host}\r\n\r\n`);
    return { socket, arrived, received: () => received };
  }

  it('still gets a slow answer to its end, as long as bytes come', async () => {
    const { arrived, received, socket } = await ask(patient.host(PORT));
    const ended = once(socket, 'end');
    const { response } = await arrived;
    // Longer altogether than any silence that is put up with.
    for (let count = 0; count < 5; count++) {
      response.write(`part ${count};`);
      await vi.waitUntil(() => received().includes(`part ${count};`), { timeout: 5_000 });
      await vi.waitUntil(() => clock.pendingTimers > 0, { timeout: 5_000 });
      await clock.advance(1_500);
    }
    response.end('the tail');
    await ended;
    expect(received()).toMatch(/^HTTP\/1\.1 200 OK\r\n.*part 0;.*part 4;.*the tail\r\n0\r\n\r\n$/s);
  });

  it('counts as gone after a silence of two seconds', async () => {
    const { arrived } = await ask(patient.host(PORT));
    const { response } = await arrived;
    await vi.waitUntil(() => clock.pendingTimers > 0, { timeout: 5_000 });
    await clock.advance(1_900);
    expect(response.closed).toBe(false);
    const closed = once(response, 'close');
    await clock.advance(100);
    await closed;
  });

  it('is let go of at once when it asked the control plane', async () => {
    const { socket, received } = await ask('x.test');
    await once(socket, 'end');
    expect(received()).toMatch(/control plane/);
  });
});

describe('an answer before the end of the upload', () => {
  it('reaches the client, and the rest of the upload is not waited for', async () => {
    handle = (_request, response) => {
      response.writeHead(413, { connection: 'close' }).end('enough');
    };
    const outgoing = open({ method: 'POST', headers: { 'content-length': String(LARGE) } });
    const answering = responseOf(outgoing);
    const source = Readable.from(pieces(LARGE));
    source.pipe(outgoing);
    const answer = await answering;
    expect(answer.statusCode).toBe(413);
    expect((await buffer(answer)).toString()).toBe('enough');
    outgoing.destroy();
    source.destroy();
    await vi.waitUntil(() => ingress.sockets.size === 0, { timeout: 5_000 });
  });

  it('leaves the connection usable when the upload ends soon', async () => {
    handle = (_request, response) => response.end('early');
    const socket = await ingress.connect();
    let received = '';
    socket.setEncoding('latin1').on('data', (data: string) => {
      received += data;
    });
    const head = `POST / HTTP/1.1\r\nhost: ${ingress.host(PORT)}\r\ncontent-length: 10\r\n\r\n`;
    socket.write(`${head}01234`);
    await vi.waitUntil(() => received.includes('early'), { timeout: 5_000 });
    socket.write(`56789GET / HTTP/1.1\r\nhost: x.test\r\n\r\n`);
    await vi.waitUntil(() => received.includes('control plane'), { timeout: 5_000 });
  });
});

describe('silence', () => {
  let impatient: IngressFixture | undefined;
  afterEach(async () => {
    await impatient?.[Symbol.asyncDispose]();
    impatient = undefined;
  });

  it('in both directions ends an exchange after the time that is set', async () => {
    impatient = await startIngress({ limits: { idleTimeoutMs: 300 } });
    let closed = false;
    await impatient.serve(PORT, (request, response) => {
      response.write('x');
      request.once('close', () => {
        closed = true;
      });
    });
    const outgoing = start(impatient.port, '/', { headers: { host: impatient.host(PORT) } });
    outgoing.end();
    await expect(readAnswer(await responseOf(outgoing))).rejects.toMatchObject({ code: 'ECONNRESET' });
    await vi.waitUntil(() => closed, { timeout: 5_000 });
  });

  it('before an answer is put up with for 30 s from AgentENV clients, from the last byte of their upload', async () => {
    const clock = createFakeClock();
    impatient = await startIngress({ clock });
    await impatient.serve(PORT, (request, response) => handle(request, response));
    const arrived = nextRequest();
    const outgoing = start(impatient.port, '/', {
      method: 'POST',
      headers: { 'x-agentenv-sandbox-id': SANDBOX_ID, 'x-agentenv-target-port': String(PORT) },
    });
    const answering = responseOf(outgoing);
    outgoing.write('some');
    const service = await arrived;
    // The timer of the connection is over, that of the answer is set.
    await vi.waitUntil(() => clock.pendingTimers === 1, { timeout: 5_000 });
    await clock.advance(29_000);
    let uploaded = '';
    service.request.on('data', (data: Buffer) => {
      uploaded += data;
    });
    outgoing.write('more');
    // What the service has got has passed the timer before.
    await vi.waitUntil(() => uploaded === 'somemore', { timeout: 5_000 });
    await clock.advance(29_000);
    expect(service.response.closed).toBe(false);
    await clock.advance(1_000);
    expect(await readAnswer(await answering)).toMatchObject({ status: 504, body: Buffer.alloc(0) });
    outgoing.destroy();
  });

  it('before an answer is no reason for E2B clients to be sent away', async () => {
    const clock = createFakeClock();
    impatient = await startIngress({ clock });
    const service = Promise.withResolvers<ServerResponse>();
    await impatient.serve(PORT, (_request, response) => service.resolve(response));
    const outgoing = start(impatient.port, '/', { headers: { host: impatient.host(PORT) } });
    outgoing.end();
    const response = await service.promise;
    await clock.advance(600_000);
    response.end('after ten minutes');
    expect((await readAnswer(await responseOf(outgoing))).body.toString()).toBe('after ten minutes');
  });
});
