import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { FRAME, LIMITS } from '../generated/protocol.ts';
import { frameBytes } from '../testing/scripted-guest.ts';
import { createFrameDecoder, type FrameSink } from './frame-decoder.ts';
import { encodeFrame } from './frame-encoder.ts';
import { ProtocolViolation } from './protocol-violation.ts';

type Seen = readonly [stream: number, type: number, payload: string];

/** A sink that joins the pieces of DATA frames of one stream, so that runs compare by content. */
function recorder(): { readonly sink: FrameSink; readonly seen: Seen[]; readonly pieces: Buffer[] } {
  const seen: Seen[] = [];
  const pieces: Buffer[] = [];
  return {
    seen,
    pieces,
    sink: {
      data(stream, piece) {
        pieces.push(piece);
        const last = seen.at(-1);
        const joins = last !== undefined && last[1] === FRAME.DATA && last[0] === stream;
        if (joins) seen.pop();
        seen.push([stream, FRAME.DATA, (joins ? last[2] : '') + piece.toString('hex')]);
      },
      control(stream, type, payload) {
        seen.push([stream, type, payload.toString('hex')]);
      },
    },
  };
}

function decodeIn(chunks: readonly Buffer[]): Seen[] {
  const { sink, seen } = recorder();
  const decoder = createFrameDecoder(sink);
  for (const chunk of chunks) decoder.push(chunk);
  return seen;
}

const frame = fc
  .tuple(
    fc.integer({ min: 0, max: 0xffff_ffff }),
    fc.oneof(
      fc.tuple(fc.constant(FRAME.DATA), fc.uint8Array({ minLength: 1, maxLength: 400 })),
      fc.tuple(fc.constant(FRAME.EOF), fc.constant(new Uint8Array(0))),
      fc.tuple(fc.constantFrom(FRAME.CREDIT, FRAME.RESET), fc.uint8Array({ minLength: 4, maxLength: 4 })),
      fc.tuple(fc.constantFrom(FRAME.RESPONSE, FRAME.EVENT), fc.uint8Array({ minLength: 4, maxLength: 400 })),
    ),
  )
  .map(([stream, [type, payload]]) => ({ stream, type, payload }));

describe('frame decoder', () => {
  it('sees the same frames however the bytes are cut', () => {
    fc.assert(
      fc.property(fc.array(frame, { maxLength: 12 }), fc.array(fc.nat(3000)), (frames, cuts) => {
        const bytes = Buffer.concat(
          frames.flatMap(({ stream, type, payload }) => [...encodeFrame(stream, type, payload)]),
        );
        const borders = [...new Set([0, ...cuts.filter((cut) => cut < bytes.length), bytes.length])].sort(
          (a, b) => a - b,
        );
        const chunks = borders.slice(1).map((end, index) => bytes.subarray(borders[index], end));
        const bytewise = [...bytes].map((byte) => Buffer.of(byte));
        expect(decodeIn(chunks)).toEqual(decodeIn([bytes]));
        expect(decodeIn(bytewise)).toEqual(decodeIn([bytes]));
        const total = (type: number) => frames.filter((sent) => sent.type === type).length;
        const controls = decodeIn([bytes]).filter(([, type]) => type !== FRAME.DATA);
        expect(controls.length).toBe(frames.length - total(FRAME.DATA));
      }),
      { numRuns: 300 },
    );
  });

  it('hands DATA on as parts of the received buffers, not as copies', () => {
    const { sink, pieces } = recorder();
    const bytes = frameBytes(16, FRAME.DATA, Buffer.alloc(60_000, 1));
    const [first, second] = [bytes.subarray(0, 20_000), bytes.subarray(20_000)];
    const decoder = createFrameDecoder(sink);
    decoder.push(first);
    decoder.push(second);
    expect(pieces.map((piece) => piece.length)).toEqual([20_000 - 9, 40_009]);
    expect(pieces.every((piece) => piece.buffer === bytes.buffer)).toBe(true);
  });

  it.each([
    ['DATA above MAX_DATA', FRAME.DATA, LIMITS.MAX_DATA + 1],
    ['a RESPONSE above MAX_CONTROL', FRAME.RESPONSE, LIMITS.MAX_CONTROL + 1],
    ['a RESPONSE without a status', FRAME.RESPONSE, 3],
    ['an EVENT without a kind', FRAME.EVENT, 1],
    ['an EOF with a payload', FRAME.EOF, 1],
    ['a CREDIT of 5 bytes', FRAME.CREDIT, 5],
    ['a RESET of 0 bytes', FRAME.RESET, 0],
    ['a REQUEST, which only hosts send', FRAME.REQUEST, 6],
    ['an unknown type', 7, 0],
    ['a huge length', FRAME.DATA, 0xffff_ffff],
  ])('refuses %s by its header alone', (_what, type, length) => {
    const header = frameBytes(16, type);
    header.writeUInt32LE(length, 0);
    expect(() => decodeIn([header])).toThrow(ProtocolViolation);
  });

  it('takes the largest allowed payloads', () => {
    const data = frameBytes(16, FRAME.DATA, Buffer.alloc(LIMITS.MAX_DATA));
    const event = frameBytes(16, FRAME.EVENT, Buffer.alloc(LIMITS.MAX_CONTROL));
    expect(decodeIn([data, event]).map(([, type, payload]) => [type, payload.length / 2])).toEqual([
      [FRAME.DATA, LIMITS.MAX_DATA],
      [FRAME.EVENT, LIMITS.MAX_CONTROL],
    ]);
  });
});
