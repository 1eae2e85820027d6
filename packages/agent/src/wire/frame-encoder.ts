import type { FrameType } from './frame-decoder.ts';
import { HEADER_BYTES } from './frame-decoder.ts';

/** Payloads up to this size, bytes, are copied behind their header: one small buffer is cheaper than a vector of two. */
const COPY_LIMIT = 8192;

function writeHeader(target: Buffer, stream: number, type: FrameType, length: number): void {
  target.writeUInt32LE(length, 0);
  target.writeUInt32LE(stream, 4);
  target.writeUInt8(type, 8);
}

/** One frame as the buffers to write in order; a larger payload is referenced, not copied, and must not change until written. */
export function encodeFrame(stream: number, type: FrameType, payload: Uint8Array): readonly Uint8Array[] {
  if (payload.length <= COPY_LIMIT) {
    const frame = Buffer.allocUnsafe(HEADER_BYTES + payload.length);
    writeHeader(frame, stream, type, payload.length);
    frame.set(payload, HEADER_BYTES);
    return [frame];
  }
  const header = Buffer.allocUnsafe(HEADER_BYTES);
  writeHeader(header, stream, type, payload.length);
  return [header, payload];
}
