import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseTraceparent } from './trace-context.ts';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const SPAN = '00f067aa0ba902b7';

describe('traceparent', () => {
  it.each([
    `00-${TRACE}-${SPAN}-01`,
    `00-${TRACE}-${SPAN}-00`,
    `00-${TRACE}-${SPAN}-fe`,
    `  00-${TRACE}-${SPAN}-03\t`,
    // A version nobody knows yet is read by the fields of version 00.
    `cc-${TRACE}-${SPAN}-01`,
    `cc-${TRACE}-${SPAN}-01-what-the-future-brings`,
  ])('is read from %s', (header) => {
    expect(parseTraceparent(header)).toEqual({ traceId: TRACE, parentId: SPAN });
  });

  it.each([
    undefined,
    '',
    'nonsense',
    `00-${TRACE}-${SPAN}`,
    `00-${TRACE}-${SPAN}-01-more`,
    `00-${TRACE}-${SPAN}-01.`,
    `cc-${TRACE}-${SPAN}-01.more`,
    `ff-${TRACE}-${SPAN}-01`,
    `0-${TRACE}-${SPAN}-01`,
    `00-${TRACE.toUpperCase()}-${SPAN}-01`,
    `00-${TRACE}-${SPAN.toUpperCase()}-01`,
    `00-${'0'.repeat(32)}-${SPAN}-01`,
    `00-${TRACE}-${'0'.repeat(16)}-01`,
    `00-${TRACE.slice(1)}-${SPAN}-01`,
    `00-${TRACE}x-${SPAN}-01`,
    // Two headers, as Node joins them.
    `00-${TRACE}-${SPAN}-01, 00-${TRACE}-${SPAN}-01`,
    `cc-${TRACE}-${SPAN}-01-${'x'.repeat(600)}`,
  ])('is ignored when it is %s', (header) => {
    expect(parseTraceparent(header)).toBeUndefined();
  });

  it('never fails and gives back exactly the ids of a valid one', () => {
    const hex = (length: number) =>
      fc.string({ unit: fc.constantFrom(...'0123456789abcdef'), minLength: length, maxLength: length });
    fc.assert(
      fc.property(hex(32), hex(16), hex(2), (traceId, parentId, flags) => {
        const valid = /[1-9a-f]/.test(traceId) && /[1-9a-f]/.test(parentId);
        const read = parseTraceparent(`00-${traceId}-${parentId}-${flags}`);
        expect(read).toEqual(valid ? { traceId, parentId } : undefined);
      }),
      { seed: 3 },
    );
    fc.assert(
      fc.property(fc.string({ maxLength: 80 }), (text) => {
        expect(parseTraceparent(text)).toBeUndefined();
      }),
      { seed: 4 },
    );
  });
});
