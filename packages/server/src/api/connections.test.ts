import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { createFakeClock, type FakeClock } from '@agentenv/core/testing';
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
