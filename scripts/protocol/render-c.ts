import type { Constant, Field, ProtocolSpec } from './spec.ts';

const LETTERS: Readonly<Record<string, string>> = {
  u8: 'b',
  u16: 'w',
  u32: 'u',
  u64: 'q',
  i32: 'i',
  i64: 'l',
  bool: '?',
  str: 's',
  bytes: 'y',
  key: 'k',
};

const macro = (name: string): string => name.toUpperCase().replaceAll('-', '_');

const define = (name: string, value: string, comment?: string): string =>
  `#define ${name} ${value}${comment === undefined ? '' : ` /* ${comment} */`}`;

const layout = (fields: readonly Field[]): string => fields.map((field) => `${field.name}:${field.type}`).join(' ');

/** Renders guest/src/protocol.gen.h: every number of the protocol and, per body, a format string a generic reader can walk. */
export function renderC(spec: ProtocolSpec): string {
  const structs = new Map(spec.structs.map((struct) => [struct.name, struct.fields]));
  const format = (fields: readonly Field[]): string => fields.map((field) => formatOf(field.type)).join('');
  const formatOf = (type: string): string => {
    const struct = /^list:(.+)$/.exec(type)?.[1];
    if (struct !== undefined) return `[${format(structs.get(struct) ?? [])}]`;
    const scalar = /^list<(.+)>$/.exec(type)?.[1];
    return scalar === undefined ? (LETTERS[type] ?? '') : `[${LETTERS[scalar] ?? ''}]`;
  };
  const group = (title: string, prefix: string, constants: readonly Constant[], comment: boolean): string[] => [
    '',
    `/* ${title} */`,
    ...constants.map((entry) =>
      define(`${prefix}${macro(entry.name)}`, `${entry.value}u`, comment ? entry.meaning : undefined),
    ),
  ];
  const formatted = (name: string, fields: readonly Field[]): string =>
    define(name, `"${format(fields)}"`, fields.length === 0 ? 'empty' : layout(fields));

  return [
    '/* Generated from guest/PROTOCOL.md by scripts/generate-protocol.ts; do not edit. */',
    '#ifndef AENV_PROTOCOL_GEN_H',
    '#define AENV_PROTOCOL_GEN_H',
    ...group('Limits, bytes', '', spec.limits, true),
    ...group('Frame types; payload in the comment', 'FRAME_', spec.frames, true),
    ...group('Flags, bits', '', spec.flags, true),
    ...group('Status codes of a RESPONSE', 'STATUS_', spec.statuses, true),
    '',
    '/* Format strings: b u8, w u16, u u32, q u64, i i32, l i64, ? bool, s str, y bytes, k key, [...] list of what is inside. */',
    '',
    '/* Structs in lists */',
    ...spec.structs.map((struct) => formatted(`STRUCT_${macro(struct.name)}_FORMAT`, struct.fields)),
    '',
    '/* Operations of a REQUEST */',
    ...spec.operations.flatMap((operation) => [
      define(`OP_${macro(operation.name)}`, `${operation.op}u`),
      formatted(`OP_${macro(operation.name)}_REQUEST_FORMAT`, operation.request),
      formatted(`OP_${macro(operation.name)}_RESPONSE_FORMAT`, operation.response),
    ]),
    '',
    '/* X(NAME, number, "name", request format, response format) for every operation */',
    '#define PROTOCOL_OPERATIONS(X) \\',
    spec.operations
      .map((operation) => {
        const name = macro(operation.name);
        return `  X(${name}, ${operation.op}u, "${operation.name}", OP_${name}_REQUEST_FORMAT, OP_${name}_RESPONSE_FORMAT)`;
      })
      .join(' \\\n'),
    '',
    '/* Kinds of an EVENT */',
    ...spec.events.flatMap((event) => [
      define(`EVENT_${macro(event.name)}`, `${event.kind}u`),
      formatted(`EVENT_${macro(event.name)}_FORMAT`, event.body),
    ]),
    '',
    '#endif',
    '',
  ].join('\n');
}
