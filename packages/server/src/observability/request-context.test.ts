import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { createSeededRandom } from '@agentenv/core/testing';
import { describe, expect, it } from 'vitest';
import { createRequestContexts } from './request-context.ts';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const SPAN = '00f067aa0ba902b7';
const request = (headers: IncomingHttpHeaders) => ({ headers }) as IncomingMessage;

describe('the context of a request', () => {
  const contexts = createRequestContexts(createSeededRandom(1));

  it('has the id the client chose', () => {
    expect(contexts.of(request({ 'x-request-id': 'my.trace_1-A' }))).toEqual({ requestId: 'my.trace_1-A' });
  });

  it.each([undefined, '', 'x'.repeat(65), 'with space', 'a, b', '<script>', 'line\nbreak', 'ünïcode'])(
    'has an id of ours instead of %j',
    (given) => {
      const one = contexts.of(request(given === undefined ? {} : { 'x-request-id': given }));
      const other = contexts.of(request(given === undefined ? {} : { 'x-request-id': given }));
      expect(one.requestId).toMatch(/^[0-9a-f]{12}-[0-9a-z]+$/);
      expect(other.requestId).not.toBe(one.requestId);
    },
  );

  it('is the same however often it is asked for', () => {
    const one = request({ traceparent: `00-${TRACE}-${SPAN}-01` });
    expect(contexts.of(one)).toBe(contexts.of(one));
  });

  it('belongs to the trace of the caller with a span of its own', () => {
    const { traceId, spanId, parentSpanId } = contexts.of(request({ traceparent: `00-${TRACE}-${SPAN}-01` }));
    expect({ traceId, parentSpanId }).toEqual({ traceId: TRACE, parentSpanId: SPAN });
    expect(spanId).toMatch(/^[0-9a-f]{16}$/);
    expect(spanId).not.toBe(SPAN);
  });

  it('ignores a trace that is not valid', () => {
    const context = contexts.of(request({ traceparent: `00-${TRACE}-${'0'.repeat(16)}-01`, 'x-request-id': 'r' }));
    expect(context).toEqual({ requestId: 'r' });
  });

  it('follows its request over every wait, and nobody else', async () => {
    const context = contexts.of(request({ 'x-request-id': 'one' }));
    const other = contexts.of(request({ 'x-request-id': 'two' }));
    const seen = async () => {
      await new Promise(setImmediate);
      return contexts.current()?.requestId;
    };
    expect(await Promise.all([contexts.run(context, seen), contexts.run(other, seen), seen()])).toEqual([
      'one',
      'two',
      undefined,
    ]);
    expect(await contexts.run(context, () => contexts.outside(seen))).toBeUndefined();
  });
});
