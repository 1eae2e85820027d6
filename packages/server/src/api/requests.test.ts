import { once } from 'node:events';
import { type AddressInfo, connect } from 'node:net';
import { PlatformError, type SandboxId } from '@agentenv/core';
import { createFakeClock, type FakeClock, sandboxRecord } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { createTestApp, TEST_API_KEY, type TestApp } from '../testing/app.ts';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const SPAN = '00f067aa0ba902b7';
const ID = 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId;

let clock: FakeClock;
let front: TestApp;
let port: number;
beforeEach(async () => {
  clock = createFakeClock();
  front = await createTestApp({ clock });
  front.orchestrator.put(sandboxRecord({ id: ID }));
  await front.app.listen({ host: '127.0.0.1', port: 0 });
  port = (front.app.server.address() as AddressInfo).port;
});
afterEach(() => front[Symbol.asyncDispose]());

const request = (path: string, init: RequestInit = {}) =>
  fetch(`http://127.0.0.1:${port}${path}`, {
    ...init,
    headers: { 'x-api-key': TEST_API_KEY, 'content-type': 'application/json', ...(init.headers as object) },
  });
const create = { method: 'POST', body: '{"templateID":"base"}' };
/** Lines about requests, once there are so many. */
const lines = async (count: number) => {
  await vi.waitUntil(() => front.log.lines.length >= count, { timeout: 10_000 });
  return front.log.lines.map(({ level, message, fields }) => ({ level, message, ...fields }));
};

describe('a request', () => {
  it('is answered with its id, whatever becomes of it', async () => {
    const ids = new Set<string | null>();
    for (const [path, init] of [
      ['/health', {}],
      ['/sandboxes/unknown', {}],
      ['/nowhere', {}],
      ['/sandboxes/%zz', {}],
      ['/templates', { method: 'DELETE' }],
      ['/v2/sandboxes', { method: 'OPTIONS', headers: { origin: 'https://a.test' } }],
      ['/v2/sandboxes', { headers: { 'x-api-key': 'wrong' } }],
      ['/v2/sandboxes', { method: 'POST', body: '{' }],
      ['/volumes', {}],
    ] as const) {
      const response = await request(path, init);
      ids.add(response.headers.get('x-request-id'));
      await response.arrayBuffer();
    }
    expect(ids.size).toBe(9);
    for (const id of ids) expect(id).toMatch(/^[0-9a-f]{12}-[0-9a-z]+$/);
  });

  it('that changes something is a line with its sandbox; one that only reads is none worth keeping', async () => {
    const { sandboxID } = (await (await request('/v2/sandboxes', create)).json()) as { sandboxID: string };
    await request(`/sandboxes/${ID}`);
    await request(`/sandboxes/${ID}`, { method: 'DELETE' });
    await request('/sandboxes/secret-in-a-path', { method: 'DELETE' });
    const all = await lines(4);
    const about = ({ level, message, method, route, status, sandboxId }: Record<string, unknown>) => ({
      ...{ level, message, method, route, status, sandboxId },
    });
    const common = { message: 'request' };
    expect(all.filter(({ message }) => message === 'request').map(about)).toEqual([
      { ...common, level: 'info', method: 'POST', route: '/v2/sandboxes', status: 201, sandboxId: sandboxID },
      { ...common, level: 'debug', method: 'GET', route: '/sandboxes/{sandboxID}', status: 200, sandboxId: ID },
      { ...common, level: 'info', method: 'DELETE', route: '/sandboxes/{sandboxID}', status: 204, sandboxId: ID },
      { ...common, level: 'debug', method: 'DELETE', route: '/sandboxes/{sandboxID}', status: 404 },
    ]);
    expect(JSON.stringify(all.filter(({ message }) => message === 'request'))).not.toContain('secret-in-a-path');
  });

  it('has the id and the trace of its caller in every line about it', async () => {
    front.orchestrator.failNext(new PlatformError('internal', 'internal error', { cause: new Error('on fire') }));
    const headers = { 'x-request-id': 'mine', traceparent: `00-${TRACE}-${SPAN}-01` };
    const response = await request('/v2/sandboxes', { ...create, headers });
    expect(response.status).toBe(500);
    expect(response.headers.get('x-request-id')).toBe('mine');
    const all = await lines(2);
    expect(all.map(({ level }) => level)).toEqual(['error', 'debug']);
    for (const line of all) {
      expect(line).toMatchObject({ requestId: 'mine', traceId: TRACE, parentSpanId: SPAN });
    }
  });

  it('is traced to whatever works on it, and no further', async () => {
    const seen: unknown[] = [];
    vi.spyOn(front.orchestrator, 'create').mockImplementation(async () => {
      await new Promise(setImmediate);
      seen.push(front.contexts.current());
      return sandboxRecord({ id: ID });
    });
    await request('/v2/sandboxes', { ...create, headers: { traceparent: `00-${TRACE}-${SPAN}-00` } });
    await request('/v2/sandboxes', { ...create, headers: { traceparent: 'nonsense', 'x-request-id': 'second' } });
    expect(seen).toMatchObject([{ traceId: TRACE, parentSpanId: SPAN }, { requestId: 'second' }]);
    expect(seen[1]).not.toHaveProperty('traceId');
    expect(front.contexts.current()).toBeUndefined();
  });
});

describe('a client that goes away', () => {
  it('is 499 in the log and the metrics; what it has asked for is done to its end', async () => {
    const started = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    const done = Promise.withResolvers<void>();
    vi.spyOn(front.orchestrator, 'create').mockImplementation(async () => {
      started.resolve();
      await goOn.promise;
      done.resolve();
      return sandboxRecord({ id: ID });
    });
    const leaving = new AbortController();
    const response = request('/v2/sandboxes', { ...create, signal: leaving.signal }).catch((error: Error) => error);
    await started.promise;
    leaving.abort();
    expect(await response).toMatchObject({ name: 'AbortError' });
    expect(await lines(1)).toMatchObject([
      { level: 'info', message: 'the client went away', status: 499, method: 'POST', route: '/v2/sandboxes' },
    ]);
    goOn.resolve();
    await done.promise;
    expect((await front.metrics.render()).text).toContain(
      'route="/v2/sandboxes",route_source="control_plane",status="499"',
    );
    // Its answer had nowhere to go; that is no failure of anybody.
    await front.drain();
    expect(front.log.find('error')).toEqual([]);
  });

  it('in the middle of its body has asked for nothing', async () => {
    const socket = connect(port, '127.0.0.1');
    await once(socket, 'connect');
    const head = ['POST /v2/sandboxes HTTP/1.1', 'host: x', `x-api-key: ${TEST_API_KEY}`];
    socket.write([...head, 'content-type: application/json', 'content-length: 100', '', '{"templateID"'].join('\r\n'));
    await vi.waitUntil(() => clock.pendingTimers === 1, { timeout: 10_000 });
    socket.destroy();
    const [line, error] = await lines(2);
    expect(line).toMatchObject({ level: 'info', message: 'the client went away', status: 499 });
    expect(error).toMatchObject({ level: 'debug', code: 'canceled' });
    await front.drain();
    expect(front.orchestrator.calls).toEqual([]);
    expect(clock.pendingTimers).toBe(0);
    expect(front.log.find('error')).toEqual([]);
  });
});
