import type { EntryType, GuestEntry } from '../agent.ts';
import type { ResponseBody } from '../channel/calls.ts';
import { ProtocolViolation } from '../wire/protocol-violation.ts';

type EntryRow = ResponseBody<'stat'>['entry'][number];

/** By the codes of guest/PROTOCOL.md. */
const TYPES: readonly EntryType[] = [
  'unknown',
  'file',
  'directory',
  'symlink',
  'fifo',
  'socket',
  'character-device',
  'block-device',
];

function typeOf(code: number): EntryType {
  const type = TYPES[code];
  if (type === undefined) throw new ProtocolViolation(`entry type ${code}`);
  return type;
}

/** An `entry` struct as the host's users see it. @throws ProtocolViolation for an unknown type. */
export function entryOf(row: EntryRow): GuestEntry {
  const { linkTarget, targetType, targetMode, ...entry } = row;
  const type = typeOf(row.type);
  return {
    ...entry,
    type,
    link: type === 'symlink' ? { target: linkTarget, type: typeOf(targetType), mode: targetMode } : undefined,
    xattrs: new Map(row.xattrs.map(({ name, value }) => [name, value])),
  };
}

/** The only entry of a list that must hold exactly one. */
export function onlyEntry(rows: readonly EntryRow[]): GuestEntry {
  const [row] = rows;
  if (row === undefined || rows.length !== 1) throw new ProtocolViolation(`${rows.length} entries instead of one`);
  return entryOf(row);
}
