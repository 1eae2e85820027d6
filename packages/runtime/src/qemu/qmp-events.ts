/** What the engine reports without being asked; events this platform does not act on arrive as `other`. */
export type QmpEvent =
  | { readonly name: 'STOP' }
  | { readonly name: 'RESUME' }
  /** `guest-reset`, `guest-shutdown`, `host-signal`, …: qapi `ShutdownCause`. */
  | { readonly name: 'SHUTDOWN'; readonly byGuest: boolean; readonly reason: string }
  | { readonly name: 'RESET'; readonly byGuest: boolean; readonly reason: string }
  | { readonly name: 'GUEST_PANICKED'; readonly action: string }
  | {
      readonly name: 'BLOCK_IO_ERROR';
      readonly node: string;
      readonly operation: string;
      readonly action: string;
      readonly reason: string;
    }
  | { readonly name: 'MIGRATION'; readonly status: string }
  | { readonly name: 'other'; readonly event: string };

export type QmpMessage =
  | { readonly kind: 'greeting'; readonly version: string }
  | { readonly kind: 'return'; readonly id: number; readonly value: unknown }
  | { readonly kind: 'error'; readonly id: number; readonly errorClass: string; readonly description: string }
  | { readonly kind: 'event'; readonly event: QmpEvent };

type Fields = Readonly<Record<string, unknown>>;

export function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

const text = (fields: Fields, key: string): string => (typeof fields[key] === 'string' ? fields[key] : '');
const flag = (fields: Fields, key: string): boolean => fields[key] === true;

function parseEvent(name: string, data: Fields): QmpEvent {
  switch (name) {
    case 'STOP':
    case 'RESUME':
      return { name };
    case 'SHUTDOWN':
    case 'RESET':
      return { name, byGuest: flag(data, 'guest'), reason: text(data, 'reason') };
    case 'GUEST_PANICKED':
      return { name, action: text(data, 'action') };
    case 'BLOCK_IO_ERROR':
      return {
        name,
        node: text(data, 'node-name') || text(data, 'device'),
        operation: text(data, 'operation'),
        action: text(data, 'action'),
        reason: text(data, 'reason'),
      };
    case 'MIGRATION':
      return { name, status: text(data, 'status') };
    default:
      return { name: 'other', event: name };
  }
}

function engineVersion(greeting: unknown): string {
  const version = isFields(greeting) && isFields(greeting.version) ? greeting.version : {};
  const numbers = isFields(version.qemu) ? version.qemu : {};
  const dotted = ['major', 'minor', 'micro'].map((part) => String(numbers[part] ?? 0)).join('.');
  const vendor = text(version, 'package');
  return vendor === '' ? dotted : `${dotted} (${vendor})`;
}

/** One line of the QMP socket. Throws a SyntaxError when it is not a QMP message. */
export function parseQmpMessage(line: string): QmpMessage {
  const message: unknown = JSON.parse(line);
  if (!isFields(message)) throw new SyntaxError('a QMP message is an object');
  if ('QMP' in message) return { kind: 'greeting', version: engineVersion(message.QMP) };
  if (typeof message.event === 'string') {
    const data = isFields(message.data) ? message.data : {};
    return { kind: 'event', event: parseEvent(message.event, data) };
  }
  const id = typeof message.id === 'number' ? message.id : -1;
  if ('return' in message) return { kind: 'return', id, value: message.return };
  if (isFields(message.error)) {
    const { error } = message;
    return { kind: 'error', id, errorClass: text(error, 'class'), description: text(error, 'desc') };
  }
  throw new SyntaxError('a QMP message without QMP, event, return or error');
}
