import { FRAME, LIMITS } from '../generated/protocol.ts';
import { ProtocolViolation } from './protocol-violation.ts';

/** Bytes in front of every payload: u32 length, u32 stream, u8 type. */
export const HEADER_BYTES = 9;

export type FrameType = (typeof FRAME)[keyof typeof FRAME];

/** Where decoded frames go. */
export interface FrameSink {
  /** A piece of a DATA payload as it arrived; never longer than the frame, not copied, valid for as long as it is kept. */
  data(stream: number, piece: Buffer): void;
  /** A whole frame of any other type. */
  control(stream: number, type: FrameType, payload: Buffer): void;
}

/** Streaming parser of guest-to-host frames. */
export interface FrameDecoder {
  /** @throws ProtocolViolation; the decoder must not be used afterwards. */
  push(chunk: Buffer): void;
}

/** Exact payload length of a type, or its maximum; types a guest never sends are missing. */
const PAYLOADS: ReadonlyMap<number, { readonly type: FrameType; readonly min: number; readonly max: number }> = new Map(
  [
    [FRAME.DATA, { type: FRAME.DATA, min: 0, max: LIMITS.MAX_DATA }],
    [FRAME.EOF, { type: FRAME.EOF, min: 0, max: 0 }],
    [FRAME.CREDIT, { type: FRAME.CREDIT, min: 4, max: 4 }],
    [FRAME.RESET, { type: FRAME.RESET, min: 4, max: 4 }],
    [FRAME.RESPONSE, { type: FRAME.RESPONSE, min: 4, max: LIMITS.MAX_CONTROL }],
    [FRAME.EVENT, { type: FRAME.EVENT, min: 2, max: LIMITS.MAX_CONTROL }],
  ],
);

const EMPTY = Buffer.alloc(0);

/** Creates a decoder that holds at most one header and one control payload (≤ MAX_CONTROL bytes). */
export function createFrameDecoder(sink: FrameSink): FrameDecoder {
  const header = Buffer.alloc(HEADER_BYTES);
  let headerBytes = 0;
  let stream = 0;
  let type: FrameType = FRAME.DATA;
  /** Payload bytes of the current frame still to come. */
  let missing = 0;
  /** The control payload being assembled. */
  let partial: Buffer | undefined;

  function begin(bytes: Buffer, at: number): void {
    const length = bytes.readUInt32LE(at);
    stream = bytes.readUInt32LE(at + 4);
    const typeNumber = bytes.readUInt8(at + 8);
    const rule = PAYLOADS.get(typeNumber);
    if (rule === undefined) throw new ProtocolViolation(`frame type ${typeNumber} on stream ${stream}`);
    if (length < rule.min || length > rule.max) {
      throw new ProtocolViolation(`payload of ${length} bytes in a frame of type ${typeNumber} on stream ${stream}`);
    }
    type = rule.type;
    missing = length;
    if (length === 0 && type !== FRAME.DATA) sink.control(stream, type, EMPTY);
  }

  function payload(chunk: Buffer, at: number): number {
    const count = Math.min(missing, chunk.length - at);
    const piece = chunk.subarray(at, at + count);
    if (type === FRAME.DATA) {
      missing -= count;
      sink.data(stream, piece);
    } else if (partial === undefined && count === missing) {
      missing = 0;
      sink.control(stream, type, piece);
    } else {
      partial ??= Buffer.allocUnsafeSlow(missing);
      piece.copy(partial, partial.length - missing);
      missing -= count;
      if (missing === 0) {
        const whole = partial;
        partial = undefined;
        sink.control(stream, type, whole);
      }
    }
    return at + count;
  }

  return {
    push(chunk) {
      let at = 0;
      while (at < chunk.length) {
        if (missing > 0) {
          at = payload(chunk, at);
        } else if (headerBytes === 0 && chunk.length - at >= HEADER_BYTES) {
          begin(chunk, at);
          at += HEADER_BYTES;
        } else {
          const count = Math.min(HEADER_BYTES - headerBytes, chunk.length - at);
          chunk.copy(header, headerBytes, at, at + count);
          headerBytes += count;
          at += count;
          if (headerBytes === HEADER_BYTES) {
            headerBytes = 0;
            begin(header, 0);
          }
        }
      }
    },
  };
}
