import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import type { SandboxId } from '@agentenv/core';
import { createFakeClock, type FakeClock, sandboxRecord } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { createTestApp, TEST_API_KEY, type TestApp } from '../testing/app.ts';

let clock: FakeClock;
let front: TestApp;
let socket: Socket;
let received: string;
beforeEach(async () => {
  clock = createFakeClock();
  front = await createTestApp({ clock });
  await front.app.listen({ host: '127.0.0.1', port: 0 });
  socket = connect((front.app.server.address() as AddressInfo).port, '127.0.0.1');
  received = '';
  socket.setEncoding('latin1').on('data', (text: string) => {
    received += text;
  });
  await once(socket, 'connect');
});
afterEach(async () => {
  socket.destroy();
  await front[Symbol.asyncDispose]();
});

const head = (...lines: string[]) => [...lines, 'host: x', `x-api-key: ${TEST_API_KEY}`, '', ''].join('\r\n');
const createHead = head('POST /v2/sandboxes HTTP/1.1', 'content-type: application/json', 'transfer-encoding: chunked');
const chunk = (text: string) => `${text.length.toString(16)}\r\n${text}\r\n`;

describe('connections', { timeout: 30_000 }, () => {
  it('gives a body 30 s to arrive, then answers 408 and closes', async () => {
    socket.write(createHead + chunk('{"templateID":'));
    await vi.waitUntil(() => clock.pendingTimers === 1, { timeout: 10_000 });
    await clock.advance(29_000);
    expect(received).toBe('');
    await clock.advance(1_000);
    await once(socket, 'close');
    expect(received).toMatch(/^HTTP\/1.1 408 /);
    expect(received).toContain('{"code":408,"message":"the body did not arrive in time"}');
    expect(front.orchestrator.calls).toEqual([]);
  });

  it('lets go of the time limit with the body', async () => {
    socket.write(createHead + chunk('{"templateID":"base"}') + chunk(''));
    await vi.waitUntil(() => received.includes('201 Created'), { timeout: 10_000 });
    await vi.waitUntil(() => clock.pendingTimers === 0, { timeout: 10_000 });
  });

  it('does a create to its end when its client has gone', async () => {
    socket.write(createHead + chunk('{"templateID":"base"}') + chunk(''));
    socket.destroy();
    await vi.waitUntil(() => front.orchestrator.calls.length === 1, { timeout: 10_000 });
    expect(front.orchestrator.calls).toMatchObject([{ method: 'create' }]);
  });

  it('takes several requests on one connection', async () => {
    socket.write(head('GET /v2/sandboxes HTTP/1.1') + head('GET /templates HTTP/1.1'));
    await vi.waitUntil(() => received.split('HTTP/1.1 200').length === 3, { timeout: 10_000 });
  });

  it('refuses what still arrives while the server ends, in the form of every error', async () => {
    socket.write(createHead + chunk('{"templateID":'));
    await vi.waitUntil(() => clock.pendingTimers === 1, { timeout: 10_000 });
    const closed = front.app.close();
    await vi.waitUntil(() => !front.app.server.listening, { timeout: 10_000 });
    socket.write(chunk('"base"}') + chunk('') + head('GET /v2/sandboxes HTTP/1.1'));
    await once(socket, 'close');
    await closed;
    const [, created, refused] = received.split('HTTP/1.1 ');
    expect(created).toMatch(/^201 /);
    expect(refused).toMatch(/^503 /);
    expect(refused).toContain('retry-after: 5\r\n');
    expect(refused).toContain('{"code":503,"message":"the server is shutting down"}');
  });

  it('lets what is under way finish while it drains, refuses everything new, and is scraped to the end', async () => {
    socket.write(createHead + chunk('{"templateID":'));
    await vi.waitUntil(() => clock.pendingTimers === 1, { timeout: 10_000 });
    let idle = false;
    const drained = front.drain().then(() => {
      idle = true;
    });
    const { port } = front.app.server.address() as AddressInfo;
    for (const path of ['/health', '/v2/sandboxes', '/nowhere']) {
      const refused = await fetch(`http://127.0.0.1:${port}${path}`, { headers: { 'x-api-key': TEST_API_KEY } });
      expect(refused.status).toBe(503);
      expect(refused.headers.get('retry-after')).toBe('5');
      expect(refused.headers.get('connection')).toBe('close');
      expect(await refused.json()).toEqual({ code: 503, message: 'the server is shutting down' });
    }
    const scraped = await fetch(`http://127.0.0.1:${port}/metrics`, { headers: { connection: 'close' } });
    expect(await scraped.text()).toContain('status="5xx"');
    expect(idle).toBe(false);
    socket.write(chunk('"base"}') + chunk(''));
    await vi.waitUntil(() => received.includes('201 Created'), { timeout: 10_000 });
    await drained;
    expect(front.orchestrator.calls).toMatchObject([{ method: 'create' }]);
  });

  it('lets go of the time limit of a body that is cut off', async () => {
    socket.write(createHead + chunk('{"templateID":'));
    await vi.waitUntil(() => clock.pendingTimers === 1, { timeout: 10_000 });
    socket.destroy();
    await vi.waitUntil(() => clock.pendingTimers === 0, { timeout: 5_000 });
  });

  it('never limits the time of a whole request and keeps idle connections longer than any client', () => {
    expect(front.app.server.requestTimeout).toBe(0);
    expect(front.app.server.keepAliveTimeout).toBeGreaterThan(60_000);
    expect(front.app.server.headersTimeout).toBeLessThanOrEqual(30_000);
    expect(front.app.server.headersTimeout).toBeGreaterThan(0);
  });
});

describe('clients that take their time', { timeout: 30_000 }, () => {
  const LIMITS = { headMs: 400, checkMs: 50, maxConnections: 3 };
  let slow: TestApp;
  let port: number;
  beforeEach(async () => {
    slow = await createTestApp({ clock, listenerLimits: LIMITS });
    await slow.app.listen({ host: '127.0.0.1', port: 0 });
    port = (slow.app.server.address() as AddressInfo).port;
  });
  afterEach(() => slow[Symbol.asyncDispose]());

  /** A client that trickles `text`; resolves with what it was answered when the server has closed the connection. */
  async function trickle(text: string): Promise<string> {
    const client = connect(port, '127.0.0.1');
    let answer = '';
    client.setEncoding('latin1').on('data', (part: string) => {
      answer += part;
    });
    client.on('error', () => {});
    await once(client, 'connect');
    const closed = Promise.withResolvers<void>();
    client.once('close', () => closed.resolve());
    let sent = 0;
    const timer = setInterval(() => {
      // What is sent after an answer may cost the client that answer.
      if (sent < text.length && answer === '') client.write(text.charAt(sent++));
    }, 20);
    try {
      await closed.promise;
    } finally {
      clearInterval(timer);
      client.destroy();
    }
    return answer;
  }

  it('get 408 when the head of a request does not arrive', async () => {
    const answer = await trickle(`GET /v2/sandboxes HTTP/1.1\r\nhost: x\r\nx-slow: ${'a'.repeat(10_000)}`);
    expect(answer).toMatch(/^HTTP\/1.1 408 /);
    expect(answer).toContain('{"code":408,"message":"the request did not arrive in time"}');
  });

  it('are closed when they never say anything', async () => {
    expect(await trickle('')).toMatch(/^HTTP\/1.1 408 /);
  });

  it('leave room for others: what comes beyond the limit of connections is closed', async () => {
    const clients = Array.from({ length: LIMITS.maxConnections }, () => connect(port, '127.0.0.1'));
    try {
      await Promise.all(clients.map((client) => once(client, 'connect')));
      expect(await trickle('GET')).toBe('');
    } finally {
      for (const client of clients) client.destroy();
    }
    await vi.waitUntil(async () => (await fetch(`http://127.0.0.1:${port}/health`).catch(() => undefined))?.ok, {
      timeout: 10_000,
    });
  });

  it('do not keep an answer in memory that they never read', async () => {
    const metadata = { filler: 'x'.repeat(60_000) };
    for (let count = 0; count < 300; count++) {
      const id = `i${String(count).padStart(20, '0')}` as SandboxId;
      slow.orchestrator.put(sandboxRecord({ id, metadata }));
    }
    const client = connect(port, '127.0.0.1');
    client.on('error', () => {});
    await once(client, 'connect');
    client.write(head('GET /sandboxes HTTP/1.1'));
    client.pause();
    await vi.waitUntil(() => clock.pendingTimers === 1, { timeout: 10_000 });
    await clock.advance(59_999);
    expect(slow.log.lines).toEqual([]);
    await clock.advance(1);
    await vi.waitUntil(() => slow.log.find('info', 'the client went away').length === 1, { timeout: 10_000 });
    expect(clock.pendingTimers).toBe(0);
    client.destroy();
  });
});
