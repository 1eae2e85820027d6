import { STRUCTS } from '../generated/protocol.ts';
import type { Body, FieldTable, FieldType, ScalarType, StructName } from './body-types.ts';
import { isScalar } from './body-types.ts';
import { ProtocolViolation } from './protocol-violation.ts';

/** Longest string the host accepts from a guest, bytes; paths, names and messages are far shorter. */
export const MAX_STRING_BYTES = 65_536;

const KEY_BYTES = 16;

/** Smallest encoding of one item, bytes: an announced list cannot hold more items than the body has room for. */
const MIN_SCALAR_BYTES: Readonly<Record<ScalarType, number>> = {
  u8: 1,
  u16: 2,
  u32: 4,
  u64: 8,
  i32: 4,
  i64: 8,
  bool: 1,
  str: 4,
  bytes: 4,
  key: KEY_BYTES,
};

const minBytes = (fields: FieldTable): number =>
  fields.reduce((sum, [, type]) => sum + (isScalar(type) ? MIN_SCALAR_BYTES[type] : 4), 0);

/** Read position in a body. */
interface Input {
  readonly bytes: Buffer;
  at: number;
}

function take(input: Input, count: number): number {
  const at = input.at;
  if (count > input.bytes.length - at) throw new ProtocolViolation(`body ends ${count} bytes early at offset ${at}`);
  input.at = at + count;
  return at;
}

function readBlob(input: Input, limit: number): Buffer {
  const length = input.bytes.readUInt32LE(take(input, 4));
  if (length > limit) throw new ProtocolViolation(`${length} bytes in a field of at most ${limit}`);
  const at = take(input, length);
  return input.bytes.subarray(at, at + length);
}

function readScalar(input: Input, type: ScalarType): unknown {
  const { bytes } = input;
  switch (type) {
    case 'u8':
      return bytes.readUInt8(take(input, 1));
    case 'u16':
      return bytes.readUInt16LE(take(input, 2));
    case 'u32':
      return bytes.readUInt32LE(take(input, 4));
    case 'u64':
      return bytes.readBigUInt64LE(take(input, 8));
    case 'i32':
      return bytes.readInt32LE(take(input, 4));
    case 'i64':
      return bytes.readBigInt64LE(take(input, 8));
    case 'bool': {
      const value = bytes.readUInt8(take(input, 1));
      if (value > 1) throw new ProtocolViolation(`${value} is not a bool`);
      return value === 1;
    }
    case 'str': {
      const blob = readBlob(input, MAX_STRING_BYTES);
      if (blob.includes(0)) throw new ProtocolViolation('NUL in a string');
      return blob.toString('utf8');
    }
    case 'bytes':
      // A copy: the frame it lies in may be far larger than what the caller keeps.
      return Uint8Array.from(readBlob(input, bytes.length));
    case 'key': {
      const at = take(input, KEY_BYTES);
      return Uint8Array.from(bytes.subarray(at, at + KEY_BYTES));
    }
  }
}

function readField(input: Input, type: FieldType): unknown {
  if (isScalar(type)) return readScalar(input, type);
  const layout = type.startsWith('list:') ? STRUCTS[type.slice('list:'.length) as StructName] : undefined;
  const itemType = type.slice('list<'.length, -1) as ScalarType;
  const count = input.bytes.readUInt32LE(take(input, 4));
  const room = input.bytes.length - input.at;
  if (count * (layout === undefined ? MIN_SCALAR_BYTES[itemType] : minBytes(layout)) > room) {
    throw new ProtocolViolation(`${count} list items in ${room} bytes`);
  }
  const items: unknown[] = [];
  for (let index = 0; index < count; index++) {
    items.push(layout === undefined ? readScalar(input, itemType) : readFields(input, layout));
  }
  return items;
}

function readFields(input: Input, fields: FieldTable): Record<string, unknown> {
  const record: Record<string, unknown> = {};
  for (const [name, type] of fields) record[name] = readField(input, type);
  return record;
}

/**
 * Decodes a body that must be consumed exactly. Invalid UTF-8 is replaced by U+FFFD.
 * @throws ProtocolViolation when the bytes do not match the layout.
 */
export function decodeBody<const Fields extends FieldTable>(fields: Fields, bytes: Uint8Array): Body<Fields> {
  const input: Input = { bytes: Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length), at: 0 };
  const record = readFields(input, fields);
  if (input.at !== bytes.length) {
    throw new ProtocolViolation(`${bytes.length - input.at} bytes left over behind the body`);
  }
  // The layout that was just walked is the one the type is computed from.
  return record as Body<Fields>;
}
