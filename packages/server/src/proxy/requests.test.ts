import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { PlatformError, type SandboxId } from '@agentenv/core';
import { createFakeClock, sandboxRecord } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { createTestApp, type TestApp } from '../testing/app.ts';

const ID = 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId;
const ENVD = { 'e2b-sandbox-id': ID, 'e2b-sandbox-port': '49983' };
const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const TRACEPARENT = `00-${TRACE}-00f067aa0ba902b7-01`;

let front: TestApp;
let port: number;
let members: { destroy(): void }[];
beforeEach(async () => {
  members = [];
  front = await createTestApp({ clock: createFakeClock() });
  await front.app.listen({ host: '127.0.0.1', port: 0 });
  port = (front.app.server.address() as AddressInfo).port;
});
afterEach(() => front[Symbol.asyncDispose]());

function run(handle: (request: IncomingMessage, response: ServerResponse) => void): void {
  const record = sandboxRecord({ id: ID, secure: false });
  front.orchestrator.put(record);
  front.orchestrator.setTarget(ID, {
    kind: 'ready',
    record,
    envd: { handle, async [Symbol.asyncDispose]() {} },
    agent: {
      async connectPort(): Promise<Duplex> {
        throw new PlatformError('not_found', 'nothing listens');
      },
    },
    sockets: { add: (member) => members.push(member) },
  });
}

const request = (path: string, headers: Record<string, string>) =>
  fetch(`http://127.0.0.1:${port}${path}`, { headers });
const counted = async () => (await front.metrics.render()).text;

describe('a request to a sandbox', () => {
  it('is answered with its id by the guest API and by the platform', async () => {
    run((_request, response) => response.end('envd'));
    const own = await request('/health', { ...ENVD, 'x-request-id': 'mine' });
    expect(own.headers.get('x-request-id')).toBe('mine');
    for (const headers of [ENVD, { ...ENVD, 'e2b-sandbox-id': 'inobody' }, { 'e2b-sandbox-port': '1' }]) {
      const response = await request('/health', headers as Record<string, string>);
      expect(response.headers.get('x-request-id')).toMatch(/^[0-9a-f]{12}-[0-9a-z]+$/);
    }
  });

  it('is traced into the guest API', async () => {
    const seen: unknown[] = [];
    run((_request, response) => {
      setImmediate(() => {
        seen.push(front.contexts.current());
        response.end();
      });
    });
    await request('/health', { ...ENVD, traceparent: TRACEPARENT, 'x-request-id': 'one' });
    await request('/health', { ...ENVD, traceparent: `${TRACEPARENT}-x`, 'x-request-id': 'two' });
    expect(seen).toEqual([
      { requestId: 'one', traceId: TRACE, spanId: expect.any(String), parentSpanId: '00f067aa0ba902b7' },
      { requestId: 'two' },
    ]);
  });

  it('whose client went away before an answer is 499', async () => {
    const arrived = Promise.withResolvers<void>();
    run(() => arrived.resolve());
    const leaving = new AbortController();
    const answer = fetch(`http://127.0.0.1:${port}/health`, { headers: ENVD, signal: leaving.signal });
    await arrived.promise;
    leaving.abort();
    await expect(answer).rejects.toThrow();
    await vi.waitUntil(async () => (await counted()).includes('route_source="proxy_header",status="499"'), 10_000);
    expect(front.log.find('debug', 'the client went away')).toMatchObject([{ fields: { route: 'proxy_header' } }]);
  });

  it('whose client left a stream it had read from is none of these', async () => {
    run((_request, response) => {
      response.writeHead(200);
      response.write('the first part');
    });
    const leaving = new AbortController();
    const answer = await fetch(`http://127.0.0.1:${port}/health`, { headers: ENVD, signal: leaving.signal });
    leaving.abort();
    await expect(answer.text()).rejects.toThrow();
    await vi.waitUntil(async () => (await counted()).includes('route_source="proxy_header",status="2xx"'), 10_000);
  });

  it('whose sandbox went away before an answer is not the doing of its client', async () => {
    run(() => {
      for (const member of members) member.destroy();
    });
    await expect(request('/health', ENVD)).rejects.toThrow();
    await vi.waitUntil(async () => (await counted()).includes('route_source="proxy_header",status="5xx"'), 10_000);
    expect(await counted()).not.toContain('status="499"');
  });
});
