/** One frame of the Connect streaming protocol. */
export interface Frame {
  readonly flags: number;
  readonly json: Record<string, unknown>;
}

/** A frame with a JSON message. */
export function encodeFrame(message: unknown, flags = 0): Buffer {
  const data = Buffer.from(JSON.stringify(message), 'utf8');
  const head = Buffer.alloc(5);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(data.length, 1);
  return Buffer.concat([head, data]);
}

/** All frames of a finished body; throws when the last one is cut off. */
export function decodeFrames(body: Buffer): Frame[] {
  const frames: Frame[] = [];
  let offset = 0;
  while (offset < body.length) {
    const length = body.readUInt32BE(offset + 1);
    if (offset + 5 + length > body.length) throw new Error('a frame is cut off');
    const text = body.subarray(offset + 5, offset + 5 + length).toString('utf8');
    frames.push({ flags: body.readUInt8(offset), json: JSON.parse(text) as Record<string, unknown> });
    offset += 5 + length;
  }
  return frames;
}
