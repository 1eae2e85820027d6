import { PlatformError } from '@agentenv/core';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { EVENTS, OPERATIONS, STRUCTS } from '../generated/protocol.ts';
import {
  type AnyBody,
  type FieldTable,
  type FieldType,
  isScalar,
  type ScalarType,
  type StructName,
} from './body-types.ts';
import { decodeBody, MAX_STRING_BYTES } from './decode-body.ts';
import { encodeBody } from './encode-body.ts';
import { ProtocolViolation } from './protocol-violation.ts';

const LIMIT = 1_048_576;

const text = fc.string({ unit: 'binary', maxLength: 40 }).map((value) => value.replaceAll('\0', ''));
const blob = fc.uint8Array({ maxLength: 64 });

const SCALARS: Readonly<Record<ScalarType, fc.Arbitrary<unknown>>> = {
  u8: fc.nat(0xff),
  u16: fc.nat(0xffff),
  u32: fc.integer({ min: 0, max: 0xffff_ffff }),
  u64: fc.bigInt({ min: 0n, max: 0xffff_ffff_ffff_ffffn }),
  i32: fc.integer({ min: -0x8000_0000, max: 0x7fff_ffff }),
  i64: fc.bigInt({ min: -0x8000_0000_0000_0000n, max: 0x7fff_ffff_ffff_ffffn }),
  bool: fc.boolean(),
  str: text,
  bytes: blob,
  key: fc.uint8Array({ minLength: 16, maxLength: 16 }),
};

function arbitraryOf(type: FieldType): fc.Arbitrary<unknown> {
  if (isScalar(type)) return SCALARS[type];
  const item = type.startsWith('list:')
    ? bodyOf(STRUCTS[type.slice(5) as StructName])
    : SCALARS[type.slice(5, -1) as ScalarType];
  return fc.array(item, { maxLength: 4 });
}

function bodyOf(fields: FieldTable): fc.Arbitrary<AnyBody> {
  return fc.record(
    Object.fromEntries(fields.map(([name, type]) => [name, arbitraryOf(type)])),
  ) as fc.Arbitrary<AnyBody>;
}

const LAYOUTS: readonly (readonly [string, FieldTable])[] = [
  ...Object.entries(OPERATIONS).flatMap(([name, { request, response }]) => [
    [`${name} request`, request] as const,
    [`${name} response`, response] as const,
  ]),
  ...Object.entries(EVENTS).map(([name, { body }]) => [`${name} event`, body] as const),
];

describe('bodies', () => {
  it.each(LAYOUTS)('%s: decodes to what was encoded', (_name, fields) => {
    fc.assert(
      fc.property(bodyOf(fields), (body) => {
        expect(decodeBody(fields, encodeBody(fields, body, { limit: LIMIT }))).toEqual(body);
      }),
      { numRuns: 30 },
    );
  });

  it.each(LAYOUTS)('%s: a body that is one byte short or long is refused', (_name, fields) => {
    fc.assert(
      fc.property(bodyOf(fields), (body) => {
        const bytes = encodeBody(fields, body, { limit: LIMIT });
        expect(() => decodeBody(fields, Buffer.concat([bytes, Buffer.alloc(1)]))).toThrow(ProtocolViolation);
        if (bytes.length > 0) expect(() => decodeBody(fields, bytes.subarray(0, -1))).toThrow(ProtocolViolation);
      }),
      { numRuns: 10 },
    );
  });

  it('random bytes decode or are refused, nothing else', () => {
    fc.assert(
      fc.property(fc.constantFrom(...LAYOUTS), fc.uint8Array({ maxLength: 300 }), ([, fields], bytes) => {
        try {
          decodeBody(fields, bytes);
        } catch (caught) {
          expect(caught).toBeInstanceOf(ProtocolViolation);
        }
      }),
      { numRuns: 2000 },
    );
  });

  it('a list that announces more items than the body has room for is refused before anything is allocated', () => {
    const bytes = Buffer.alloc(8);
    bytes.writeUInt32LE(0xffff_ffff);
    expect(() => decodeBody([['list', 'list<u8>']], bytes)).toThrow('4294967295 list items in 4 bytes');
    expect(() => decodeBody([['list', 'list:process']], bytes)).toThrow('list items');
  });

  it('a string longer than any path or name is refused', () => {
    const long = encodeBody([['text', 'bytes']], { text: Buffer.alloc(MAX_STRING_BYTES + 1, 'a') }, { limit: LIMIT });
    expect(() => decodeBody([['text', 'str']], long)).toThrow(ProtocolViolation);
  });

  it('invalid UTF-8 is replaced, NUL and a bool of 2 are refused', () => {
    const raw = (...bytes: number[]) => encodeBody([['v', 'bytes']], { v: Uint8Array.from(bytes) }, { limit: LIMIT });
    expect(decodeBody([['v', 'str']], raw(0x61, 0xff, 0x62))).toEqual({ v: 'a\uFFFDb' });
    expect(() => decodeBody([['v', 'str']], raw(0x61, 0))).toThrow('NUL');
    expect(() => decodeBody([['v', 'bool']], Uint8Array.of(2))).toThrow('2 is not a bool');
  });

  it('decoded bytes do not keep the frame alive', () => {
    const frame = Buffer.alloc(100_000);
    encodeBody([['v', 'bytes']], { v: Uint8Array.of(1, 2, 3) }, { limit: LIMIT }).copy(frame);
    expect(decodeBody([['v', 'bytes']], frame.subarray(0, 7)).v.buffer.byteLength).toBe(3);
  });
});

describe('encoding', () => {
  const encode = (fields: FieldTable, body: AnyBody, limit = LIMIT) => encodeBody(fields, body, { limit });

  it.each([
    ['u16', 65_536],
    ['u16', -1],
    ['u32', 1.5],
    ['i32', 0x8000_0000],
    ['u64', -1n],
    ['str', 'a\0b'],
    ['key', new Uint8Array(15)],
    ['bool', 1],
  ] as const)('%s refuses %s as an argument, naming the field', (type, value) => {
    expect(() => encode([['field', type]], { field: value })).toThrow(
      expect.objectContaining({ code: 'invalid_argument', details: { field: 'field' } }),
    );
  });

  it('refuses a body above the limit instead of growing', () => {
    const body = { blob: new Uint8Array(2000) };
    expect(() => encode([['blob', 'bytes']], body, 1000)).toThrow(PlatformError);
  });

  it('leaves the prefix free', () => {
    expect([...encodeBody([['v', 'u8']], { v: 9 }, { limit: LIMIT, prefix: 6 }).subarray(6)]).toEqual([9]);
  });
});
