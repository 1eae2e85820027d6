import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import { PlatformError, type SandboxRecord } from '@agentenv/core';
import { createFakeClock, type FakeClock, sandboxRecord } from '@agentenv/core/testing';
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { WebSocket, WebSocketServer } from 'ws';
import { answerToCaller } from '../hooks/failure.ts';
import { readAnswer, responseOf, send, start } from '../testing/http-client.ts';
import { type IngressFixture, SANDBOX_ID, startIngress } from '../testing/ingress-fixture.ts';

const PORT = 3000;
const NOT_FOUND = { sandboxId: SANDBOX_ID, message: 'The sandbox was not found', code: 502 };

let ingress: IngressFixture;
let clock: FakeClock;
beforeAll(async () => {
  clock = createFakeClock();
  ingress = await startIngress({ clock });
  const sockets = new WebSocketServer({ noServer: true });
  const service = createServer(async (request, response) => {
    response.end(`${request.method} ${request.url} ${(await text(request)).length}`);
  });
  service.on('upgrade', (request: IncomingMessage, socket, head) => {
    sockets.handleUpgrade(request, socket, head, (client) => {
      client.on('message', (data) => client.send(data));
    });
  });
  await ingress.listen(PORT, (connection) => service.emit('connection', connection));
});
beforeEach(() => {
  ingress.orchestrator.clear();
  ingress.orchestrator.setWake(undefined);
});
afterAll(async () => {
  expect(ingress.faults()).toEqual([]);
  await ingress[Symbol.asyncDispose]();
});

/** Pauses the sandbox; a resume waits for `open` before it runs. */
function asleep(changes: Partial<SandboxRecord> = {}): { readonly open: () => void; readonly wakes: () => number } {
  const record = sandboxRecord({ id: SANDBOX_ID, secure: false, autoResume: true, ...changes, state: 'paused' });
  ingress.orchestrator.put(record);
  ingress.orchestrator.setTarget(SANDBOX_ID, { kind: 'asleep', record });
  const gate = Promise.withResolvers<void>();
  ingress.orchestrator.setWake(async () => {
    await gate.promise;
    ingress.run(changes);
  });
  return {
    open: gate.resolve,
    wakes: () => ingress.orchestrator.calls.filter(({ method }) => method === 'wake').length,
  };
}

const own = (port: number): Record<string, string> => ({
  'x-agentenv-sandbox-id': SANDBOX_ID,
  'x-agentenv-target-port': String(port),
});
const byHost = (port: number): Record<string, string> => ({ host: ingress.host(port) });

describe('a request for a paused sandbox that traffic resumes', () => {
  it('is served once it runs, with all of its body', async () => {
    const sandbox = asleep();
    const answering = send(ingress.port, '/a%2Fb?c', {
      method: 'POST',
      headers: byHost(PORT),
      body: Buffer.alloc(3_000_000, 7),
    });
    await vi.waitUntil(() => sandbox.wakes() === 1, { timeout: 5_000 });
    sandbox.open();
    const answer = await answering;
    expect([answer.status, String(answer.body)]).toEqual([200, 'POST /a%2Fb?c 3000000']);
  });

  it('is served by the guest API too', async () => {
    asleep().open();
    const answer = await send(ingress.port, '/files?path=a', { headers: byHost(49_983) });
    expect([answer.status, String(answer.body)]).toEqual([200, 'envd GET /files?path=a']);
  });

  it('may be one to upgrade', async () => {
    const sandbox = asleep();
    const client = new WebSocket(`ws://127.0.0.1:${ingress.port}/`, { headers: byHost(PORT) });
    onTestFinished(() => client.terminate());
    await vi.waitUntil(() => sandbox.wakes() === 1, { timeout: 5_000 });
    sandbox.open();
    await once(client, 'open');
    client.send('after');
    expect(String((await once(client, 'message'))[0])).toBe('after');
  });

  it('resumes nothing without its tokens', async () => {
    const closed = { secure: true, network: { ...sandboxRecord({}).network, allowPublicTraffic: false } };
    const sandbox = asleep(closed);
    sandbox.open();
    const record = sandboxRecord({ id: SANDBOX_ID, ...closed });
    const traffic = ingress.orchestrator.trafficAccessToken(record) ?? '';
    const access = ingress.orchestrator.accessToken(record) ?? '';
    const statusOf = async (headers: Record<string, string>, path = '/') =>
      (await send(ingress.port, path, { headers })).status;
    expect(await statusOf(byHost(PORT))).toBe(403);
    expect(await statusOf({ ...byHost(PORT), 'e2b-traffic-access-token': `${traffic}x` })).toBe(403);
    expect(await statusOf({ ...byHost(49_983), 'x-access-token': `${access}x` })).toBe(403);
    expect(await statusOf(byHost(49_983), '/files?path=a&signature=v1_x')).toBe(403);
    expect(await statusOf({ ...byHost(49_983), 'x-access-token': access }, '/init')).toBe(404);
    expect(await statusOf(own(PORT))).toBe(401);
    expect(await statusOf(own(49_983))).toBe(401);
    expect(sandbox.wakes()).toBe(0);
    expect(await statusOf({ ...byHost(49_983), 'x-access-token': access })).toBe(200);
    expect(sandbox.wakes()).toBe(1);
  });

  it.each([
    ['fails', 'create_failed', 502, NOT_FOUND, 502, 'sandbox auto-resume failed'],
    [
      'is refused by the extension',
      'extension_rejected',
      502,
      { ...NOT_FOUND, message: 'The sandbox could not be resumed: the custom extension refused it' },
      502,
      'sandbox auto-resume failed',
    ],
    [
      'finds the extension failing',
      'extension_failed',
      502,
      { ...NOT_FOUND, message: 'The sandbox could not be resumed: the custom extension failed' },
      502,
      'sandbox auto-resume failed',
    ],
    [
      'finds no room',
      'capacity',
      429,
      { ...NOT_FOUND, message: 'The sandbox could not be resumed: the host is full', code: 429 },
      502,
      'sandbox auto-resume failed',
    ],
  ] as const)('is told when the resume %s', async (_case, code, status, body, ownStatus, ownBody) => {
    asleep();
    ingress.orchestrator.setWake(async () => {
      throw answerToCaller('auto-resume', new PlatformError(code, 'no'));
    });
    const answer = await send(ingress.port, '/', { method: 'POST', headers: byHost(PORT), body: 'lost' });
    expect([answer.status, JSON.parse(String(answer.body))]).toEqual([status, body]);
    const ownAnswer = await send(ingress.port, '/', { headers: own(PORT) });
    expect([ownAnswer.status, String(ownAnswer.body)]).toEqual([ownStatus, ownBody]);
    const upgrade = await send(ingress.port, '/', {
      headers: { ...byHost(PORT), connection: 'Upgrade', upgrade: 'websocket' },
    });
    expect(upgrade.status).toBe(status);
  });

  it('waits for 60 s at most', async () => {
    const sandbox = asleep();
    const answering = [byHost(PORT), own(PORT)].map((headers) => send(ingress.port, '/', { headers }));
    await vi.waitUntil(() => sandbox.wakes() === 2, { timeout: 5_000 });
    await clock.advance(60_000);
    const [e2b, agentenv] = await Promise.all(answering);
    expect([e2b?.status, agentenv?.status]).toEqual([504, 504]);
    expect(String(agentenv?.body)).toBe('sandbox auto-resume timed out');
    sandbox.open();
  });

  it('gets the answers of a paused sandbox when that was paused again meanwhile', async () => {
    asleep();
    ingress.orchestrator.setWake(async () => undefined);
    const answer = await send(ingress.port, '/', { headers: byHost(PORT) });
    expect([answer.status, JSON.parse(String(answer.body))]).toEqual([502, NOT_FOUND]);
    expect((await send(ingress.port, '/', { headers: own(PORT) })).status).toBe(410);
  });

  it('may leave before it is served, and the sandbox is resumed all the same', async () => {
    const sandbox = asleep();
    const leaving = start(ingress.port, '/', { headers: byHost(PORT) });
    leaving.on('error', () => undefined);
    leaving.end();
    await vi.waitUntil(() => sandbox.wakes() === 1, { timeout: 5_000 });
    leaving.destroy();
    sandbox.open();
    const staying = start(ingress.port, '/', { headers: byHost(PORT) });
    staying.end();
    expect(String((await readAnswer(await responseOf(staying))).body)).toBe('GET / 0');
  });
});
