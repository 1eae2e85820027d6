import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { createFakeClock, type FakeClock } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { createTestApp, TEST_API_KEY, type TestApp } from '../testing/app.ts';

const KEY = `x-api-key: ${TEST_API_KEY}`;
const HALF_MIB = Buffer.alloc(512 * 1024, 'x');

let clock: FakeClock;
let front: TestApp;
let socket: Socket;
let received: string;
let failure: Error | undefined;
beforeEach(async () => {
  clock = createFakeClock();
  front = await createTestApp({ clock });
  await front.app.listen({ host: '127.0.0.1', port: 0 });
  socket = await open();
});
afterEach(async () => {
  socket.destroy();
  await front[Symbol.asyncDispose]();
});

async function open(): Promise<Socket> {
  const { port } = front.app.server.address() as AddressInfo;
  const client = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  received = '';
  failure = undefined;
  client.on('error', (error) => {
    failure = error;
  });
  client.setEncoding('latin1').on('data', (text: string) => {
    received += text;
  });
  await once(client, 'connect');
  return client;
}

const lines = (...head: string[]) => [...head, '', ''].join('\r\n');
const answered = (status: number) =>
  vi.waitUntil(() => received.includes(`HTTP/1.1 ${status} `), { timeout: 10_000 }).then(() => received);
const ended = () => vi.waitUntil(() => socket.readableEnded || socket.destroyed, { timeout: 10_000 });

/** Sends a body for a while after its refusal, which must cost the client nothing. */
async function sendOn(): Promise<void> {
  for (let count = 0; count < 4; count++) {
    if (!socket.write(HALF_MIB)) await Promise.race([once(socket, 'drain'), once(socket, 'close'), delay(10_000)]);
  }
}

describe('a body that nobody wants to read', { timeout: 30_000 }, () => {
  it.each([
    ['413', 'too large by its length', ['content-type: application/json', 'content-length: 2500000', KEY]],
    ['413', 'too large by its length, last of its connection', ['content-length: 2500000', KEY, 'connection: close']],
    ['401', 'of a stranger', ['content-length: 2500000', 'connection: close']],
  ])('is answered %s when it is %s, however much of it follows', async (status, _what, head) => {
    socket.write(lines('POST /v2/sandboxes HTTP/1.1', 'host: x', ...head));
    await answered(Number(status));
    await sendOn();
    socket.write(Buffer.alloc(2_500_000 - 4 * HALF_MIB.length));
    socket.end();
    await ended();
    expect(failure).toBeUndefined();
    expect(received).toContain(`{"code":${status},`);
  });

  it('is answered 413 when its chunks become too many', async () => {
    socket.write(
      lines(
        'POST /v2/sandboxes HTTP/1.1',
        'host: x',
        'content-type: application/json',
        'transfer-encoding: chunked',
        KEY,
      ),
    );
    for (let count = 0; count < 6; count++)
      socket.write(Buffer.concat([Buffer.from('80000\r\n'), HALF_MIB, Buffer.from('\r\n')]));
    expect(await answered(413)).toContain('{"code":413,');
    socket.end('0\r\n\r\n');
    await ended();
    expect(failure).toBeUndefined();
  });

  it('is not read for ever', async () => {
    socket.write(lines('POST /v2/sandboxes HTTP/1.1', 'host: x', 'content-length: 99999999', KEY));
    await answered(413);
    await vi.waitUntil(() => clock.pendingTimers > 0, { timeout: 10_000 });
    await clock.advance(10_000);
    await vi.waitUntil(() => socket.destroyed || socket.readableEnded, { timeout: 10_000 });
  });
});

describe('a head that is none', { timeout: 30_000 }, () => {
  const NO_HOST = 'the request has no Host header';
  const TWO_HOSTS = 'the request has more than one Host header';
  it.each([
    ['no host', 400, NO_HOST, ['GET /health HTTP/1.1']],
    ['no host but a body to be announced', 400, NO_HOST, ['POST /sandboxes HTTP/1.1', 'expect: 100-continue']],
    ['no host but an upgrade', 400, NO_HOST, ['GET /health HTTP/1.1', 'connection: upgrade', 'upgrade: websocket']],
    ['two hosts', 400, TWO_HOSTS, ['GET /health HTTP/1.1', 'host: x', 'host: x']],
    [
      'two hosts, one for a sandbox',
      400,
      TWO_HOSTS,
      ['GET / HTTP/1.1', 'Host: api.x', 'HOST: 80-iaaaaaaaaaaaaaaaaaaaa.x'],
    ],
    [
      'an unknown expectation',
      417,
      "the expectation 'a miracle' is not supported",
      ['GET /health HTTP/1.1', 'host: x', 'expect: a miracle'],
    ],
    ['no request line', 400, 'the request is malformed', ['nonsense']],
    [
      'two lengths',
      400,
      'the request is malformed',
      ['POST /sandboxes HTTP/1.1', 'host: x', 'content-length: 1', 'content-length: 2'],
    ],
    [
      'a length beside chunks',
      400,
      'the request is malformed',
      ['POST /sandboxes HTTP/1.1', 'host: x', 'content-length: 1', 'transfer-encoding: chunked'],
    ],
    ['CONNECT', 405, 'CONNECT is not supported', ['CONNECT x:1 HTTP/1.1', 'host: x']],
  ])('%s is answered in the form of every error, and is the last one', async (_what, status, message, head) => {
    socket.write(lines(...head) + lines('GET /sandboxes HTTP/1.1', 'host: x', KEY));
    await answered(status);
    socket.end();
    await ended();
    expect(failure).toBeUndefined();
    expect(received.toLowerCase()).toContain('\r\nconnection: close\r\n');
    expect(received).toContain(JSON.stringify({ code: status, message }));
    expect(received.split('HTTP/1.1 ')).toHaveLength(2);
  });

  it('is refused on a connection that was used before, too', async () => {
    socket.write(lines('GET /health HTTP/1.1', 'host: x'));
    await answered(204);
    socket.write(lines('GET /health HTTP/1.1', `x-long: ${'a'.repeat(200_000)}`));
    expect(await answered(431)).toContain('{"code":431,"message":"the request headers are too large"}');
    socket.end();
    await ended();
    expect(failure).toBeUndefined();
  });

  it('without a host is fine in HTTP/1.0, which has none', async () => {
    socket.write(lines('GET /health HTTP/1.0'));
    await answered(204);
  });
});
