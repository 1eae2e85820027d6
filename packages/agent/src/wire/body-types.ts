import type { STRUCTS } from '../generated/protocol.ts';

/** Types that are not lists; see "Types in bodies" of guest/PROTOCOL.md. */
export type ScalarType = 'u8' | 'u16' | 'u32' | 'u64' | 'i32' | 'i64' | 'bool' | 'str' | 'bytes' | 'key';
export type StructName = keyof typeof STRUCTS;
export type FieldType = ScalarType | `list<${ScalarType}>` | `list:${StructName}`;
/** The layout of a body or struct: `[name, type]` in wire order. */
export type FieldTable = readonly (readonly [name: string, type: FieldType])[];

type Value<Type extends FieldType> = Type extends 'bool'
  ? boolean
  : Type extends 'u64' | 'i64'
    ? bigint
    : Type extends 'str'
      ? string
      : Type extends 'bytes' | 'key'
        ? Uint8Array
        : Type extends `list<${infer Item extends ScalarType}>`
          ? readonly Value<Item>[]
          : Type extends `list:${infer Name extends StructName}`
            ? readonly Body<(typeof STRUCTS)[Name]>[]
            : number;

/** The object a layout encodes from and decodes to; 64-bit integers are bigint. */
export type Body<Fields extends FieldTable> = {
  readonly [Field in Fields[number] as Field[0]]: Value<Field[1]>;
};

type AnyValue = Value<FieldType>;
/** A body whose layout is only known at run time. */
export type AnyBody = Readonly<Record<string, AnyValue>>;

/** Whether a field holds one value rather than a list. */
export const isScalar = (type: FieldType): type is ScalarType => !type.startsWith('list');
