import type { Log } from '../log.ts';

export interface LogLine {
  readonly level: 'debug' | 'info' | 'warn' | 'error';
  readonly fields: Readonly<Record<string, unknown>>;
  readonly message: string;
}

/** A log that keeps its lines, for tests that look at them. */
export interface RecordingLog extends Log {
  readonly lines: LogLine[];
  /** Lines of one level whose message contains `text`. */
  find(level: LogLine['level'], text?: string): readonly LogLine[];
}

export function createRecordingLog(): RecordingLog {
  const lines: LogLine[] = [];
  const at = (level: LogLine['level'], bound: object): ((fields: object, message: string) => void) => {
    return (fields, message) => lines.push({ level, fields: { ...bound, ...fields }, message });
  };
  const withFields = (bound: object): RecordingLog => ({
    lines,
    find: (level, text = '') => lines.filter((line) => line.level === level && line.message.includes(text)),
    debug: at('debug', bound),
    info: at('info', bound),
    warn: at('warn', bound),
    error: at('error', bound),
    child: (fields) => withFields({ ...bound, ...fields }),
  });
  return withFields({});
}
