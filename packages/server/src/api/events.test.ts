import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { SandboxId } from '@agentenv/core';
import { sandboxRecord } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { createTestApp, TEST_API_KEY, type TestApp } from '../testing/app.ts';
import { parseEventStream } from '../testing/events.ts';

const ONE = 'iaaaaaaaaaaaaaaaaaaaa' as SandboxId;
const TWO = 'ibbbbbbbbbbbbbbbbbbbb' as SandboxId;

let front: TestApp;
let port: number;
beforeEach(async () => {
  front = await createTestApp();
  await front.app.listen({ host: '127.0.0.1', port: 0 });
  port = (front.app.server.address() as AddressInfo).port;
});
afterEach(() => front[Symbol.asyncDispose]());

interface Reader {
  readonly response: IncomingMessage;
  /** The sandboxes of the events that have come. */
  sandboxes(): readonly string[];
  text(): string;
  leave(): void;
}

async function read(path: string, headers: Record<string, string> = {}): Promise<Reader> {
  const request = get({ port, path, headers: { 'x-api-key': TEST_API_KEY, ...headers }, agent: false });
  request.on('error', () => undefined);
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  let text = '';
  response.setEncoding('utf8').on('data', (piece: string) => {
    text += piece;
  });
  response.on('error', () => undefined);
  const sandboxes = () =>
    parseEventStream(text).blocks.flatMap(({ event, data }) =>
      event?.startsWith('sandbox.') === true
        ? [String((JSON.parse(data ?? '') as { sandbox_id: string }).sandbox_id)]
        : [],
    );
  return { response, sandboxes, text: () => text, leave: () => request.destroy() };
}

const publish = (id: SandboxId, type: 'created' | 'resumed' = 'created'): string => {
  front.events.publish(sandboxRecord({ id }), { type: `sandbox.lifecycle.${type}` });
  return front.events.at(front.events.end - 1)?.id ?? '';
};

describe('GET /events', () => {
  it('streams events, all or some, with headers that let them through', async () => {
    const all = await read('/events');
    expect(all.response.statusCode).toBe(200);
    expect(all.response.headers).toMatchObject({
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-store',
      'x-accel-buffering': 'no',
    });
    const one = await read(`/events?sandboxID=${ONE}`);
    const some = await read(`/events?type=sandbox.lifecycle.resumed,sandbox.lifecycle.killed&sandboxID=${ONE},${TWO}`);
    publish(ONE);
    publish(TWO);
    const last = publish(TWO, 'resumed');
    await expect.poll(all.sandboxes).toEqual([ONE, TWO, TWO]);
    await expect.poll(one.sandboxes).toEqual([ONE]);
    await expect.poll(some.sandboxes).toEqual([TWO]);
    publish(ONE);
    const again = await read('/events', { 'last-event-id': last.toUpperCase() });
    await expect.poll(again.sandboxes).toEqual([ONE]);
  });

  it('refuses what it does not understand by name', async () => {
    const ask = (path: string, headers: Record<string, string> = {}) =>
      front.app.inject({ url: path, headers: { 'x-api-key': TEST_API_KEY, ...headers } });
    expect((await ask('/events?type=nonsense')).json().message).toMatch(/^type\.0 must be one of sandbox\.lifecycle/);
    const stale = await ask('/events', { 'last-event-id': 'seven' });
    expect(stale.json()).toEqual({ code: 400, message: 'Last-Event-ID must be a valid uuid' });
    expect(front.eventStreams.readers).toBe(0);
  });

  it('forgets readers that leave, and those that only ask for the head', async () => {
    const reader = await read('/events');
    expect(front.eventStreams.readers).toBe(1);
    reader.leave();
    await expect.poll(() => front.eventStreams.readers).toBe(0);
    const head = await fetch(`http://127.0.0.1:${port}/events`, {
      method: 'HEAD',
      headers: { 'x-api-key': TEST_API_KEY },
    });
    expect([head.status, head.headers.get('content-type')]).toEqual([200, 'text/event-stream; charset=utf-8']);
    await expect.poll(() => front.eventStreams.readers).toBe(0);
  });

  it('answers 429 when there are too many readers', async () => {
    const readers = await Promise.all(Array.from({ length: 4 }, () => read('/events')));
    const refused = await front.app.inject({ url: '/events', headers: { 'x-api-key': TEST_API_KEY } });
    expect([refused.statusCode, refused.headers['retry-after']]).toEqual([429, '30']);
    for (const reader of readers) reader.leave();
    await expect.poll(() => front.eventStreams.readers).toBe(0);
  });

  it('cuts off a client that does not read, and tells it when it comes back what it missed', async () => {
    const request = get({ port, path: '/events', headers: { 'x-api-key': TEST_API_KEY }, agent: false });
    request.on('error', () => undefined);
    const [response] = (await once(request, 'response')) as [IncomingMessage];
    let text = '';
    let end = '';
    response.on('error', (error) => {
      end = error.message;
    });
    const metadata = { text: 'x'.repeat(64 * 1024) };
    let last = '';
    // More than connections and the bus together keep.
    for (let index = 0; index < 600; index++) {
      front.events.publish(sandboxRecord({ id: ONE, metadata }), { type: 'sandbox.lifecycle.created' });
      last = front.events.idBefore(front.events.end);
      if (index % 20 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    expect(front.eventStreams.readers).toBe(1);
    response.setEncoding('utf8').on('data', (piece: string) => {
      text += piece;
    });
    await expect.poll(() => end).toBe('aborted');
    expect(front.eventStreams.readers).toBe(0);
    const seen = parseEventStream(text).blocks.findLast(({ id }) => id !== undefined)?.id ?? '';
    expect(seen < last).toBe(true);
    const back = await read('/events', { 'last-event-id': seen });
    await expect.poll(back.text).toContain(`event: stream.missed\ndata: {"last_event_id":"${seen}"}`);
    await expect.poll(back.text).toContain(`id: ${last}`);
    back.leave();
  });

  it('does not hold up the end of the server, and sees it', async () => {
    const reader = await read('/events');
    await front.drain();
    publish(ONE);
    await front.eventStreams[Symbol.asyncDispose]();
    await expect.poll(() => reader.response.complete).toBe(true);
    expect(reader.sandboxes()).toEqual([ONE]);
  });
});
