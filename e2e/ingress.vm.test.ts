import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { type ClientRequest, request as httpRequest, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { Sandbox } from 'e2b';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { startServer, type TestServer } from './lib/server.ts';
import { waitUntil } from './lib/wait.ts';

const DOMAIN = 'sandboxes.test';
const MIB = 2 ** 20;

let server: TestServer;
let sandbox: Sandbox;
beforeAll(async () => {
  server = await startServer({ config: `sandbox_proxy.domains = ["${DOMAIN}"]` });
  sandbox = await Sandbox.create('base', {
    ...server.sdk,
    timeoutMs: 600_000,
    network: {
      allowPublicTraffic: false,
      // biome-ignore lint/suspicious/noTemplateCurlyInString: this is what clients write
      maskRequestHost: 'localhost:${PORT}',
    },
  });
  await sandbox.files.write(
    'service.mjs',
    await readFile(join(import.meta.dirname, 'lib/sandbox-service.mjs'), 'utf8'),
  );
  await sandbox.commands.run('node service.mjs', { background: true, timeoutMs: 0 });
  await waitUntil(async () => (await get('/')).status === 200, { timeout: 60_000, what: 'the service to listen' });
});
afterAll(async () => {
  await sandbox?.kill();
  await server?.[Symbol.asyncDispose]();
});

/** Headers of a client that knows the sandbox; its name would lead to the server if there were a DNS for it. */
const headersFor = (port: number): Record<string, string> => ({
  host: sandbox.getHost(port),
  'e2b-traffic-access-token': sandbox.trafficAccessToken ?? '',
});

function open(path: string, options: { method?: string; port?: number; headers?: Record<string, string> } = {}) {
  const { method = 'GET', port = 3000, headers = headersFor(port) } = options;
  const { hostname, port: serverPort } = new URL(server.url);
  return httpRequest({ host: hostname, port: serverPort, path, method, headers, agent: false });
}

async function answerOf(outgoing: ClientRequest): Promise<IncomingMessage> {
  const [answer] = (await once(outgoing, 'response')) as [IncomingMessage];
  return answer;
}

async function get(path: string, options: Parameters<typeof open>[1] = {}) {
  const outgoing = open(path, options);
  outgoing.end();
  const answer = await answerOf(outgoing);
  return { status: answer.statusCode, headers: answer.headers, body: await text(answer) };
}

describe('a server in the sandbox that listens on loopback only', () => {
  it('is reached by the host the SDK names, path and headers as they are, the host masked', async () => {
    expect(sandbox.getHost(3000)).toBe(`3000-${sandbox.sandboxId}.${DOMAIN}`);
    const { body } = await get('/a//b%2Fc/../d?e=%20', { headers: { ...headersFor(3000), 'x-mine': '1' } });
    const seen = JSON.parse(body);
    expect(seen).toMatchObject({ method: 'GET', url: '/a//b%2Fc/../d?e=%20', address: '127.0.0.1' });
    expect(seen.headers).toMatchObject({
      ...{ host: 'localhost:3000', 'x-mine': '1' },
      'x-forwarded-host': sandbox.getHost(3000),
    });
    expect(seen.headers).not.toHaveProperty('e2b-traffic-access-token');
  });

  it('is for holders of the token, and is told apart from a closed port and an unknown sandbox', async () => {
    const refused = await get('/', { headers: { host: sandbox.getHost(3000) } });
    expect(refused.status).toBe(403);
    const closed = await get('/', { port: 3999 });
    expect(closed.status).toBe(502);
    expect(JSON.parse(closed.body)).toEqual({
      ...{ sandboxId: sandbox.sandboxId, port: 3999, code: 502 },
      message: 'The sandbox is running but port is not open',
    });
    const page = await get('/', { port: 3999, headers: { ...headersFor(3999), accept: 'text/html' } });
    expect(page.headers['content-type']).toContain('text/html');
    const unknown = await get('/', { headers: { host: `3000-inever0000000000there.${DOMAIN}` } });
    expect(JSON.parse(unknown.body).message).toBe('The sandbox was not found');
  });

  it('is reached on ::1 as well, with Python’s own server', async () => {
    await sandbox.commands.run('mkdir -p www && echo from python > www/page.txt');
    await sandbox.commands.run('cd www && python3 -m http.server 8001 --bind ::1', { background: true, timeoutMs: 0 });
    await waitUntil(async () => (await get('/page.txt', { port: 8001 })).body === 'from python\n', {
      timeout: 60_000,
      what: 'the page of Python’s server',
    });
  });

  it('streams events one by one', async () => {
    const outgoing = open('/events');
    outgoing.end();
    const answer = (await answerOf(outgoing)).setEncoding('utf8');
    const arrivals: string[] = [];
    for await (const event of answer) arrivals.push(String(event));
    expect(arrivals).toEqual([1, 2, 3, 4, 5].map((count) => `data: ${count}\n\n`));
  });

  it('talks over WebSocket', async () => {
    const client = new WebSocket(`${server.url.replace('http', 'ws')}/socket`, { headers: headersFor(3000) });
    await once(client, 'open');
    for (const message of ['one', 'two', 'three']) {
      client.send(message);
      expect(String((await once(client, 'message'))[0])).toBe(message);
    }
    client.close(1000);
    expect((await once(client, 'close'))[0]).toBe(1000);
  });

  it('takes and gives 64 MiB at once, unharmed', async () => {
    const sent = createHash('sha256');
    const received = createHash('sha256');
    const piece = randomBytes(MIB);
    const source = Readable.from(
      (function* () {
        for (let count = 0; count < 64; count++) {
          sent.update(piece);
          yield piece;
        }
      })(),
    );
    const outgoing = open('/mirror', { method: 'POST' });
    const answering = answerOf(outgoing);
    const sending = pipeline(source, outgoing);
    let bytes = 0;
    for await (const chunk of await answering) {
      received.update(chunk);
      bytes += chunk.length;
    }
    await sending;
    expect(bytes).toBe(64 * MIB);
    expect(received.digest('hex')).toBe(sent.digest('hex'));
  });

  it('breaks off when the sandbox is killed, which is not found from then on', async () => {
    const outgoing = open('/silence');
    // The reset shows on the request as well; the answer is what is looked at.
    outgoing.on('error', () => {});
    outgoing.end();
    const answer = await answerOf(outgoing);
    await once(answer, 'data');
    const rest = text(answer);
    const broken = expect(rest).rejects.toMatchObject({ code: 'ECONNRESET' });
    expect(await sandbox.kill()).toBe(true);
    await broken;
    expect(JSON.parse((await get('/')).body)).toMatchObject({ message: 'The sandbox was not found', code: 502 });
  });
});
