import type { Constant, Field, ProtocolSpec } from './spec.ts';

const camel = (name: string): string => name.replace(/-([a-z])/g, (_match, letter: string) => letter.toUpperCase());

const fields = (list: readonly Field[]): string =>
  `[${list.map((field) => `['${field.name}', '${field.type}']`).join(', ')}]`;

/** Renders packages/agent/src/generated/protocol.ts: the same tables as constants, from which the body types are derived. */
export function renderTypeScript(spec: ProtocolSpec): string {
  const table = (doc: string, name: string, constants: readonly Constant[]): string[] => [
    '',
    `/** ${doc} */`,
    `export const ${name} = {`,
    ...constants.map((entry) => `  /** ${entry.meaning} */\n  ${entry.name}: ${entry.value},`),
    '} as const;',
  ];
  return [
    '// Generated from guest/PROTOCOL.md by scripts/generate-protocol.ts; do not edit.',
    ...table('Limits, bytes.', 'LIMITS', spec.limits),
    ...table('Frame types with their payload.', 'FRAME', spec.frames),
    ...table('Bits of the `flags` fields.', 'FLAGS', spec.flags),
    ...table('Status codes of a RESPONSE.', 'STATUS', spec.statuses),
    '',
    '/** Structs in lists: `[field, type]` in wire order. */',
    'export const STRUCTS = {',
    ...spec.structs.map((struct) => `  ${camel(struct.name)}: ${fields(struct.fields)},`),
    '} as const;',
    '',
    '/** Operations of a REQUEST with the layouts of both bodies. */',
    'export const OPERATIONS = {',
    ...spec.operations.flatMap((operation) => [
      `  ${camel(operation.name)}: {`,
      `    op: ${operation.op},`,
      `    request: ${fields(operation.request)},`,
      `    response: ${fields(operation.response)},`,
      '  },',
    ]),
    '} as const;',
    '',
    '/** Kinds of an EVENT with the layout of its body. */',
    'export const EVENTS = {',
    ...spec.events.map((event) => `  ${camel(event.name)}: { kind: ${event.kind}, body: ${fields(event.body)} },`),
    '} as const;',
    '',
  ].join('\n');
}
