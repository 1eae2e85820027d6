import { createServer, request as httpRequest } from 'node:http';
import type { AddressInfo } from 'node:net';
import { gzipSync } from 'node:zlib';
import { type Log, PlatformError, SILENT_LOG } from '@agentenv/core';
import { createFakeClock, type FakeClock } from '@agentenv/core/testing';
import { Process } from '@agentenv/protocol/process';
import type { ServiceImpl } from '@connectrpc/connect';
import { afterEach, describe, expect, test } from 'vitest';
import { decodeFrames, encodeFrame } from '../testing/connect-frames.ts';
import { createRpcAdapter } from './adapter.ts';
import { CALL_VALUES } from './call-values.ts';

let stack = new AsyncDisposableStack();
afterEach(async () => {
  await stack.disposeAsync();
  stack = new AsyncDisposableStack();
});

interface Setup {
  readonly clock: FakeClock;
  readonly logged: string[];
  /** Sends the pieces of a body; without the last one the body stays open. */
  send(
    method: string,
    contentType: string,
    body: Buffer,
    options?: { readonly length?: number; readonly headers?: Record<string, string> },
  ): Promise<{ status: number; body: Buffer }>;
}

async function serve(implementation: Partial<ServiceImpl<typeof Process>>): Promise<Setup> {
  const clock = createFakeClock();
  const logged: string[] = [];
  const log: Log = { ...SILENT_LOG, error: (_fields, message) => logged.push(message) };
  const rpc = createRpcAdapter({ clock, log, routes: (router) => router.service(Process, implementation) });
  const server = createServer((request, response) => void rpc.find(request.url ?? '')?.(request, response));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  stack.defer(async () => {
    server.closeAllConnections();
    await new Promise<void>((resolve) => server.close(() => resolve()));
  });
  const { port } = server.address() as AddressInfo;
  return {
    clock,
    logged,
    send: (method, contentType, body, { length = body.length, headers = {} } = {}) =>
      new Promise((resolve, reject) => {
        const request = httpRequest({
          host: '127.0.0.1',
          port,
          agent: false,
          path: `/process.Process/${method}`,
          method: 'POST',
          headers: { 'content-type': contentType, 'content-length': length, ...headers },
        });
        request.on('error', reject);
        request.on('response', (response) => {
          const chunks: Buffer[] = [];
          response.on('data', (chunk: Buffer) => chunks.push(chunk));
          response.on('error', reject);
          response.on('end', () => resolve({ status: response.statusCode ?? 0, body: Buffer.concat(chunks) }));
        });
        request.write(body);
        if (length === body.length) request.end();
      }),
  };
}

const JSON_CALL = 'application/json';
const JSON_STREAM = 'application/connect+json';
const BINARY_CALL = 'application/proto';
const BINARY_STREAM = 'application/connect+proto';

/** One message of a stream. */
function envelope(data: Uint8Array, flags = 0): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(data.length, 1);
  return Buffer.concat([head, data]);
}

describe('errors', () => {
  test('ours have their code and message, in both forms', async () => {
    const { send, logged } = await serve({
      list() {
        throw new PlatformError('not_found', 'no such thing', { cause: new Error('secret') });
      },
      // biome-ignore lint/correctness/useYield: it fails before it has anything to yield
      async *start() {
        throw new PlatformError('capacity', 'too many');
      },
    });
    const unary = await send('List', JSON_CALL, Buffer.from('{}'));
    expect(unary.status).toBe(404);
    expect(JSON.parse(unary.body.toString())).toEqual({ code: 'not_found', message: 'no such thing' });
    const stream = await send('Start', JSON_STREAM, encodeFrame({}));
    expect(stream.status).toBe(200);
    expect(decodeFrames(stream.body)).toEqual([
      { flags: 2, json: { error: { code: 'resource_exhausted', message: 'too many' } } },
    ]);
    expect(logged).toEqual([]);
  });

  test('others are internal, say nothing of themselves, and are logged', async () => {
    const { send, logged } = await serve({
      list() {
        throw new Error('secret');
      },
    });
    const { status, body } = await send('List', JSON_CALL, Buffer.from('{}'));
    expect(status).toBe(500);
    expect(body.toString()).not.toContain('secret');
    expect(logged).toHaveLength(1);
  });

  test('a sandbox that is gone breaks the connection instead of answering', async () => {
    const { send } = await serve({
      list() {
        throw new PlatformError('sandbox_unavailable', 'gone');
      },
      async *start() {
        yield {};
        throw new PlatformError('sandbox_unavailable', 'gone');
      },
    });
    await expect(send('List', JSON_CALL, Buffer.from('{}'))).rejects.toMatchObject({ code: 'ECONNRESET' });
    await expect(send('Start', JSON_STREAM, encodeFrame({}))).rejects.toMatchObject({ code: 'ECONNRESET' });
  });

  test.each([
    ['List', JSON_CALL, Buffer.from('{')],
    ['Start', JSON_STREAM, Buffer.from([0, 0])],
  ])('a client of %s that stalls in its body is told so', async (method, contentType, body) => {
    const { send, clock } = await serve({ list: () => ({}) });
    const answer = send(method, contentType, body, { length: 100 });
    await expect.poll(() => clock.pendingTimers).toBeGreaterThan(0);
    await clock.advance(60_000);
    const text = (await answer).body.toString('latin1');
    expect(text).toContain('deadline_exceeded');
    expect(text).toContain('no request body arrived for 60 s');
  });
});

describe('a message that cannot be read is the fault of its client', () => {
  /** A field that is longer than the message, and a wire type there is none of. */
  const BROKEN = [Buffer.from('0aff', 'hex'), Buffer.from('0f', 'hex')];
  /** `process.tag` of SendInput; `process.cmd` of Start and `start.process.tag` of StreamInput. */
  const NO_UTF8 = { call: Buffer.from('0a041202fffe', 'hex'), stream: Buffer.from('0a060a041202fffe', 'hex') };
  /** JSON with the string where either stream has one. */
  const strings = (text: string) => `{"tag":"${text}","start":{"process":{"tag":"${text}"}}}`;
  const TRUNCATED = gzipSync(Buffer.from('{}')).subarray(0, -4);

  test.each([
    ...[...BROKEN, NO_UTF8.call].map((bytes) => ['in binary', BINARY_CALL, bytes, {}] as const),
    ['in JSON that is no UTF-8', JSON_CALL, Buffer.from('{"process":{"tag":"\xff"}}', 'latin1'), {}] as const,
    ['in JSON with half a character', JSON_CALL, Buffer.from('{"process":{"tag":"\\ud800"}}'), {}] as const,
    ['in gzip that is cut off', JSON_CALL, TRUNCATED, { 'content-encoding': 'gzip' }] as const,
  ])('of a call, %s', async (_what, contentType, body, headers) => {
    const { send, logged } = await serve({ sendInput: () => ({}) });
    const answer = await send('SendInput', contentType, body, { headers });
    expect({ status: answer.status, ...JSON.parse(answer.body.toString()) }).toMatchObject({
      status: 400,
      code: 'invalid_argument',
    });
    expect(logged).toEqual([]);
  });

  test.each([
    ...[...BROKEN, NO_UTF8.stream].map((bytes) => ['in binary', BINARY_STREAM, envelope(bytes), {}] as const),
    ['in JSON that is no UTF-8', JSON_STREAM, envelope(Buffer.from(strings('\xff'), 'latin1')), {}] as const,
    ['in JSON with half a character', JSON_STREAM, envelope(Buffer.from(strings('\\ud800'))), {}] as const,
    ['compressed though nothing was agreed', JSON_STREAM, envelope(TRUNCATED, 1), {}] as const,
    ['in gzip that is cut off', JSON_STREAM, envelope(TRUNCATED, 1), { 'connect-content-encoding': 'gzip' }] as const,
  ])('of a stream, %s', async (_what, contentType, body, headers) => {
    const { send, logged } = await serve({
      async *start() {
        yield {};
      },
      async streamInput(messages) {
        for await (const _message of messages);
        return {};
      },
    });
    for (const method of ['Start', 'StreamInput']) {
      const answer = await send(method, contentType, body, { headers });
      expect(answer.status).toBe(200);
      expect(decodeFrames(answer.body)).toMatchObject([{ flags: 2, json: { error: { code: 'invalid_argument' } } }]);
    }
    expect(logged).toEqual([]);
  });

  test('an answer that cannot be written stays ours', async () => {
    const { send } = await serve({ list: () => ({ processes: [{ pid: -1 }] }) });
    expect(await send('List', BINARY_CALL, Buffer.alloc(0))).toMatchObject({ status: 500 });
  });
});

test('a call with one answer ends at its time limit, and its work is told', async () => {
  const told = Promise.withResolvers<unknown>();
  const { send, clock } = await serve({
    async list(_request, { signal }) {
      signal.addEventListener('abort', () => told.resolve(signal.reason));
      return await new Promise(() => {});
    },
  });
  const answer = send('List', JSON_CALL, Buffer.from('{}'), { headers: { 'connect-timeout-ms': '1000' } });
  await expect.poll(() => clock.pendingTimers).toBe(1);
  await clock.advance(1000);
  const { status, body } = await answer;
  expect(status).toBe(504);
  expect(JSON.parse(body.toString())).toMatchObject({ code: 'deadline_exceeded' });
  expect(await told.promise).toMatchObject({ code: 'deadline_exceeded' });
});

test('frames that are written past the library keep their place and wait for the client', async () => {
  const { send } = await serve({
    async *start(_request, context) {
      const { writeFrame } = context.values.get(CALL_VALUES);
      yield { event: { event: { case: 'start', value: { pid: 1 } } } };
      for (let count = 0; count < 100; count++) {
        await writeFrame?.(encodeFrame({ count, padding: 'x'.repeat(50_000) }).toString('latin1'));
        if (count % 10 === 0) yield { event: { event: { case: 'start', value: { pid: 100 + count } } } };
      }
    },
  });
  const { body } = await send('Start', JSON_STREAM, encodeFrame({}));
  const order = decodeFrames(body).map(({ flags, json }) => {
    if ((flags & 2) !== 0) return 'end';
    const event = json.event as { start: { pid: number } } | undefined;
    return event === undefined ? json.count : `pid ${event.start.pid}`;
  });
  const expected: unknown[] = ['pid 1'];
  for (let count = 0; count < 100; count++) {
    expected.push(count);
    if (count % 10 === 0) expected.push(`pid ${100 + count}`);
  }
  expect(order).toEqual([...expected, 'end']);
});
