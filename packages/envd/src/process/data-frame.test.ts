import { StartResponseSchema } from '@agentenv/protocol/process';
import { create, toJsonString } from '@bufbuild/protobuf';
import { encodeEnvelope } from '@connectrpc/connect/protocol';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { encodeDataFrame } from './data-frame.ts';

test('a data frame is byte for byte what the protocol library sends', () => {
  const bytes = fc.oneof(
    fc.uint8Array({ maxLength: 300 }),
    fc.nat(32_768).map((length) => new Uint8Array(length).fill(0xfb)),
  );
  fc.assert(
    fc.property(fc.constantFrom('stdout', 'stderr', 'pty'), bytes, (stream, data) => {
      const message = create(StartResponseSchema, {
        event: { event: { case: 'data', value: { output: { case: stream, value: data } } } },
      });
      const expected = encodeEnvelope(0, Buffer.from(toJsonString(StartResponseSchema, message), 'utf8'));
      expect(Buffer.from(encodeDataFrame({ stream, data }), 'latin1').equals(expected)).toBe(true);
    }),
  );
});
