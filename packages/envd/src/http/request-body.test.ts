import { PassThrough } from 'node:stream';
import { createFakeClock } from '@agentenv/core/testing';
import { expect, test } from 'vitest';
import { readRequestBody } from './request-body.ts';

function setUp() {
  const clock = createFakeClock();
  const request = new PassThrough();
  const body = readRequestBody(request, { clock, idleMs: 1_000 });
  return { clock, request, body };
}

test('yields what arrives and leaves no timer', async () => {
  const { clock, request, body } = setUp();
  request.write('ab');
  expect((await body.next()).value).toEqual(Buffer.from('ab'));
  request.end('c');
  expect((await body.next()).value).toEqual(Buffer.from('c'));
  expect((await body.next()).done).toBe(true);
  expect(clock.pendingTimers).toBe(0);
});

test('a client that stalls is a request timeout', async () => {
  const { clock, body } = setUp();
  const next = expect(body.next()).rejects.toThrow(expect.objectContaining({ code: 'request_timeout' }));
  await clock.advance(1_000);
  await next;
  expect(clock.pendingTimers).toBe(0);
});

test('time in which nobody asks for more is no stall', async () => {
  const { clock, request, body } = setUp();
  request.write('a');
  await body.next();
  await clock.advance(60_000);
  request.end('b');
  expect((await body.next()).value).toEqual(Buffer.from('b'));
});

test('a client that goes away is canceled', async () => {
  const { request, body } = setUp();
  const next = expect(body.next()).rejects.toThrow(expect.objectContaining({ code: 'canceled' }));
  request.destroy(new Error('aborted'));
  await next;
});

test('leaving early keeps the request usable', async () => {
  const { request, body } = setUp();
  request.write('a');
  for await (const _chunk of body) break;
  expect(request.destroyed).toBe(false);
});
