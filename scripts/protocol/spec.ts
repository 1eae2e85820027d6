/** One named, typed member of a body or struct; `type` as written in guest/PROTOCOL.md ("Types in bodies"). */
export interface Field {
  readonly name: string;
  readonly type: string;
}

/** A named number with its explanation: limit, frame type, status code or flag. */
export interface Constant {
  readonly name: string;
  readonly value: number;
  readonly meaning: string;
}

export interface Operation {
  readonly op: number;
  readonly name: string;
  readonly request: readonly Field[];
  readonly response: readonly Field[];
}

export interface ProtocolEvent {
  readonly kind: number;
  readonly name: string;
  readonly body: readonly Field[];
}

export interface Struct {
  readonly name: string;
  readonly fields: readonly Field[];
}

/** Everything the tables of guest/PROTOCOL.md say, in the order of the document. */
export interface ProtocolSpec {
  readonly limits: readonly Constant[];
  readonly frames: readonly Constant[];
  readonly operations: readonly Operation[];
  readonly structs: readonly Struct[];
  readonly events: readonly ProtocolEvent[];
  readonly flags: readonly Constant[];
  readonly statuses: readonly Constant[];
}

/** The types a body may be made of, lists excluded. */
export const SCALAR_TYPES = ['u8', 'u16', 'u32', 'u64', 'i32', 'i64', 'bool', 'str', 'bytes', 'key'] as const;

type Row = ReadonlyMap<string, string>;

interface Table {
  readonly header: readonly string[];
  readonly rows: readonly Row[];
}

const cellsOf = (line: string): string[] =>
  line
    .split('|')
    .slice(1, -1)
    .map((cell) => cell.trim());

const isTableLine = (line: string): boolean => line.startsWith('|') && line.trimEnd().endsWith('|');

function readTables(markdown: string): Table[] {
  const tables: Table[] = [];
  const lines = markdown.split('\n');
  for (let at = 0; at < lines.length; at++) {
    if (!isTableLine(lines[at] ?? '')) continue;
    const start = at;
    while (isTableLine(lines[at] ?? '')) at++;
    const [header = [], , ...body] = lines.slice(start, at).map(cellsOf);
    tables.push({
      header,
      rows: body.map((cells, index) => {
        if (cells.length !== header.length) {
          throw new Error(`line ${start + index + 3}: ${cells.length} cells in a table of ${header.length} columns`);
        }
        return new Map(header.map((column, position) => [column, cells[position] ?? '']));
      }),
    });
  }
  return tables;
}

function cell(row: Row, column: string): string {
  const value = row.get(column);
  if (value === undefined) throw new Error(`no column "${column}"`);
  return value;
}

function integer(row: Row, column: string): number {
  const text = cell(row, column);
  if (!/^\d+$/.test(text)) throw new Error(`column "${column}": "${text}" is not a number`);
  return Number(text);
}

function fieldsOf(text: string, structNames: ReadonlySet<string>): Field[] {
  if (text === '-') return [];
  return text.split(/\s+/).map((token) => {
    const colon = token.indexOf(':');
    if (colon < 1) throw new Error(`"${token}" is not name:type`);
    const field = { name: token.slice(0, colon), type: token.slice(colon + 1) };
    const scalar = /^list<(.+)>$/.exec(field.type)?.[1] ?? field.type;
    const struct = /^list:(.+)$/.exec(field.type)?.[1];
    const known = struct === undefined ? SCALAR_TYPES.some((type) => type === scalar) : structNames.has(struct);
    if (!known) throw new Error(`field "${token}" has an unknown type`);
    return field;
  });
}

function assertUnique(what: string, values: readonly (string | number)[]): void {
  if (new Set(values).size !== values.length) throw new Error(`duplicate ${what}`);
}

/** Reads the tables of guest/PROTOCOL.md; throws naming the place when one is missing, malformed or ambiguous. */
export function parseProtocol(markdown: string): ProtocolSpec {
  const tables = readTables(markdown);
  const rowsOf = (...header: string[]): readonly Row[] => {
    const found = tables.filter((table) => table.header.join('|') === header.join('|'));
    if (found.length !== 1) throw new Error(`${found.length} tables with the header ${header.join(' | ')}`);
    return found[0]?.rows ?? [];
  };
  const constants = (rows: readonly Row[], value: string, name: string, meaning: string): Constant[] =>
    rows.map((row) => ({ name: cell(row, name), value: integer(row, value), meaning: cell(row, meaning) }));

  const structRows = rowsOf('struct', 'fields');
  const structNames = new Set(structRows.map((row) => cell(row, 'struct')));
  const spec: ProtocolSpec = {
    limits: constants(rowsOf('limit', 'bytes', 'rule'), 'bytes', 'limit', 'rule'),
    frames: constants(rowsOf('type', 'name', 'direction', 'payload', 'meaning'), 'type', 'name', 'payload'),
    operations: rowsOf('op', 'name', 'request', 'response', 'meaning').map((row) => ({
      op: integer(row, 'op'),
      name: cell(row, 'name'),
      request: fieldsOf(cell(row, 'request'), structNames),
      response: fieldsOf(cell(row, 'response'), structNames),
    })),
    structs: structRows.map((row) => ({
      name: cell(row, 'struct'),
      fields: fieldsOf(cell(row, 'fields'), structNames),
    })),
    events: rowsOf('kind', 'name', 'body', 'on stream', 'meaning').map((row) => ({
      kind: integer(row, 'kind'),
      name: cell(row, 'name'),
      body: fieldsOf(cell(row, 'body'), structNames),
    })),
    flags: constants(rowsOf('name', 'bit', 'used by', 'meaning'), 'bit', 'name', 'meaning'),
    statuses: constants(rowsOf('code', 'name', 'meaning'), 'code', 'name', 'meaning'),
  };
  for (const group of ['limits', 'frames', 'flags', 'statuses'] as const) {
    assertUnique(
      `name in ${group}`,
      spec[group].map((entry) => entry.name),
    );
  }
  assertUnique(
    'operation number',
    spec.operations.map((operation) => operation.op),
  );
  assertUnique(
    'event kind',
    spec.events.map((event) => event.kind),
  );
  assertUnique(
    'status code',
    spec.statuses.map((status) => status.value),
  );
  return spec;
}
