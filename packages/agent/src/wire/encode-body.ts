import { PlatformError } from '@agentenv/core';
import { STRUCTS } from '../generated/protocol.ts';
import type { Body, FieldTable, FieldType, ScalarType, StructName } from './body-types.ts';
import { isScalar } from './body-types.ts';

const KEY_BYTES = 16;

const INTEGER_RANGES = {
  u8: { bytes: 1, min: 0n, max: 0xffn },
  u16: { bytes: 2, min: 0n, max: 0xffffn },
  u32: { bytes: 4, min: 0n, max: 0xffff_ffffn },
  u64: { bytes: 8, min: 0n, max: 0xffff_ffff_ffff_ffffn },
  i32: { bytes: 4, min: -0x8000_0000n, max: 0x7fff_ffffn },
  i64: { bytes: 8, min: -0x8000_0000_0000_0000n, max: 0x7fff_ffff_ffff_ffffn },
} as const;

type IntegerType = keyof typeof INTEGER_RANGES;

const invalid = (field: string, why: string): PlatformError =>
  new PlatformError('invalid_argument', `${field}: ${why}`, { details: { field } });

const isIntegerType = (type: FieldType): type is IntegerType => Object.hasOwn(INTEGER_RANGES, type);

/** A growing output buffer; the only state of one encoding. */
interface Output {
  bytes: Buffer;
  length: number;
  readonly limit: number;
}

function reserve(output: Output, field: string, count: number): number {
  const at = output.length;
  const needed = at + count;
  if (needed > output.limit) throw invalid(field, `the request is larger than ${output.limit} bytes`);
  if (needed > output.bytes.length) {
    const grown = Buffer.allocUnsafe(Math.min(output.limit, Math.max(needed, output.bytes.length * 2)));
    output.bytes.copy(grown, 0, 0, at);
    output.bytes = grown;
  }
  output.length = needed;
  return at;
}

function writeInteger(output: Output, field: string, type: IntegerType, value: unknown): void {
  const range = INTEGER_RANGES[type];
  const wide = typeof value === 'number' && Number.isInteger(value) ? BigInt(value) : value;
  if (typeof wide !== 'bigint' || wide < range.min || wide > range.max) throw invalid(field, `not a ${type}`);
  const at = reserve(output, field, range.bytes);
  if (range.bytes === 8) output.bytes.writeBigUInt64LE(BigInt.asUintN(64, wide), at);
  else output.bytes.writeUIntLE(Number(BigInt.asUintN(range.bytes * 8, wide)), at, range.bytes);
}

function writeBytes(output: Output, field: string, value: Uint8Array): void {
  // First the room: it may replace the buffer.
  const at = reserve(output, field, value.length);
  output.bytes.set(value, at);
}

function writeBlob(output: Output, field: string, value: Uint8Array): void {
  writeInteger(output, field, 'u32', value.length);
  writeBytes(output, field, value);
}

function writeScalar(output: Output, field: string, type: ScalarType, value: unknown): void {
  if (isIntegerType(type)) {
    writeInteger(output, field, type, value);
  } else if (type === 'bool') {
    if (typeof value !== 'boolean') throw invalid(field, 'not a boolean');
    writeInteger(output, field, 'u8', value ? 1 : 0);
  } else if (type === 'str') {
    if (typeof value !== 'string') throw invalid(field, 'not a string');
    if (value.includes('\0')) throw invalid(field, 'contains a NUL character');
    writeBlob(output, field, Buffer.from(value, 'utf8'));
  } else if (!(value instanceof Uint8Array)) {
    throw invalid(field, 'not bytes');
  } else if (type === 'bytes') {
    writeBlob(output, field, value);
  } else {
    if (value.length !== KEY_BYTES) throw invalid(field, `not ${KEY_BYTES} bytes`);
    writeBytes(output, field, value);
  }
}

const isRecord = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null;

function writeField(output: Output, field: string, type: FieldType, value: unknown): void {
  if (isScalar(type)) {
    writeScalar(output, field, type, value);
    return;
  }
  if (!Array.isArray(value)) throw invalid(field, 'not a list');
  writeInteger(output, field, 'u32', value.length);
  if (type.startsWith('list:')) {
    const layout = STRUCTS[type.slice('list:'.length) as StructName];
    for (const item of value) writeFields(output, layout, item);
  } else {
    const itemType = type.slice('list<'.length, -1) as ScalarType;
    for (const item of value) writeScalar(output, field, itemType, item);
  }
}

function writeFields(output: Output, fields: FieldTable, value: unknown): void {
  const record = isRecord(value) ? value : {};
  for (const [name, type] of fields) writeField(output, name, type, record[name]);
}

/**
 * Encodes a body behind `prefix` free bytes (left for the caller to fill).
 * @throws PlatformError `invalid_argument` naming the field: out of range, NUL in a string, or the result above `limit` bytes.
 */
export function encodeBody<const Fields extends FieldTable>(
  fields: Fields,
  value: Body<Fields>,
  options: { readonly limit: number; readonly prefix?: number },
): Buffer {
  const prefix = options.prefix ?? 0;
  const output: Output = { bytes: Buffer.allocUnsafe(prefix + 128), length: prefix, limit: options.limit };
  writeFields(output, fields, value);
  return output.bytes.subarray(0, output.length);
}
