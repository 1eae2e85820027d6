import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { get, type IncomingMessage } from 'node:http';
import { connect } from 'node:http2';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Sandbox } from 'e2b';
import { expect, test } from 'vitest';
import { makeCertificate } from '../testing/certificates.ts';
import { parseEventStream, type ServerSentEvent } from '../testing/events.ts';
import { freePort } from '../testing/free-port.ts';
import { startServerProcess } from '../testing/server-process.ts';

const KEY = `e2b_${'ab'.repeat(20)}`;

async function openStream(url: string, path: string, headers: Record<string, string> = {}) {
  const request = get(`${url}${path}`, { headers: { 'x-api-key': KEY, ...headers }, agent: false });
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  expect(response.statusCode).toBe(200);
  let text = '';
  response.setEncoding('utf8').on('data', (piece: string) => {
    text += piece;
  });
  const events = (): readonly ServerSentEvent[] =>
    parseEventStream(text).blocks.filter(({ data }) => data !== undefined);
  const ended = once(response, 'end');
  // A server that is killed at the end of a test breaks it off.
  ended.catch(() => undefined);
  return {
    events,
    types: () => events().map(({ event }) => event?.replace('sandbox.lifecycle.', '')),
    ended,
  };
}

test('a server streams what a client does to its sandboxes, to the end of the server, and says what the next does not know', async () => {
  await using server = await startServerProcess({ environment: { AENV_API_KEY: KEY } });
  const url = await server.ready();
  const connection = { apiKey: KEY, apiUrl: url, sandboxUrl: url };
  expect((await fetch(`${url}/events`)).status).toBe(401);
  const all = await openStream(url, '/events');
  const first = await Sandbox.create('base', { ...connection, metadata: { team: 'alpha' } });
  const second = await Sandbox.create('base', connection);
  const ofSecond = await openStream(url, `/events?sandboxID=${second.sandboxId}`);
  await first.setTimeout(60_000);
  await first.pause();
  await Sandbox.connect(first.sandboxId, connection);
  await first.kill();
  await expect.poll(all.types).toEqual(['created', 'created', 'updated', 'paused', 'resumed', 'killed']);
  const [created] = all.events();
  expect(JSON.parse(created?.data ?? '')).toMatchObject({
    ...{ id: created?.id, type: 'sandbox.lifecycle.created', sandbox_id: first.sandboxId },
    event_data: { sandbox_metadata: { team: 'alpha' } },
  });

  // Its orderly end pauses what runs; readers get to see it before they are told that it is over.
  expect(await server.end('SIGTERM')).toBe(0);
  await Promise.all([all.ended, ofSecond.ended]);
  expect(ofSecond.types()).toEqual(['paused']);
  expect(all.types().at(-1)).toBe('paused');
  expect(server.output()).toContain('lifecycle event');

  const seen = all.events().at(-1)?.id ?? '';
  const scratch = server.home.replace(/\/home$/, '');
  await using next = await startServerProcess({ scratch, environment: { AENV_API_KEY: KEY } });
  const again = await openStream(await next.ready(), '/events', { 'last-event-id': seen });
  await expect
    .poll(() => again.events())
    .toMatchObject([{ event: 'stream.missed', data: JSON.stringify({ last_event_id: seen }) }]);
});

test('the stream comes over TLS and HTTP/2 as well, and ends with the server', async () => {
  const scratch = await mkdtemp(join(tmpdir(), 'aenv-events-tls-'));
  try {
    const { certificate } = await makeCertificate(scratch, ['events.test']);
    const port = await freePort();
    await using server = await startServerProcess({
      scratch,
      environment: { AENV_API_KEY: KEY },
      config: [
        'backend = "fake"',
        `tls.addr = "127.0.0.1:${port}"`,
        'tls.certificates = ["cert.pem"]',
        'tls.private_keys = ["key.pem"]',
      ].join('\n'),
    });
    const url = await server.ready();
    const ca = await readFile(certificate);
    const session = connect(`https://127.0.0.1:${port}`, { ca, servername: 'events.test' });
    session.on('error', () => undefined);
    const stream = session.request({ ':path': '/events', 'x-api-key': KEY });
    const [head] = (await once(stream, 'response')) as [Record<string, unknown>];
    expect(head).toMatchObject({ ':status': 200, 'content-type': 'text/event-stream; charset=utf-8' });
    let text = '';
    stream.setEncoding('utf8').on('data', (piece: string) => {
      text += piece;
    });
    const ended = once(stream, 'end');
    const { sandboxId } = await Sandbox.create('base', { apiKey: KEY, apiUrl: url, sandboxUrl: url });
    await expect.poll(() => text).toContain(sandboxId);
    expect(await server.end('SIGTERM')).toBe(0);
    await ended;
    expect(text).toContain('event: sandbox.lifecycle.paused');
    session.destroy();
  } finally {
    await rm(scratch, { recursive: true, force: true });
  }
});
