import { PlatformError, shorten } from '@agentenv/core';
import type { components } from '@agentenv/protocol/control-plane';
import type { LogQuery, SandboxLogs, StoredLogEntry } from '../observability/sandbox-logs.ts';
import type { Handlers } from './operations.ts';

type SandboxLogEntry = components['schemas']['SandboxLogEntry'];

/** Handlers of what happened to sandboxes; those that ended lately have their logs still (contract e2b.md 6.7). */
export function createLogHandlers({
  sandboxLogs,
}: {
  readonly sandboxLogs: Pick<SandboxLogs, 'read'>;
}): Pick<Handlers, 'getSandboxLogs' | 'getSandboxLogsV2'> {
  function read(id: string, query: LogQuery): readonly StoredLogEntry[] {
    const entries = sandboxLogs.read(id, query);
    if (entries === undefined) throw new PlatformError('not_found', `sandbox '${shorten(id, 64)}' not found`);
    return entries;
  }

  return {
    getSandboxLogs: ({ path, query }) => {
      const { start, limit = 1000 } = query;
      const entries = read(path.sandboxID, { from: start, limit, direction: 'forward' });
      return { status: 200, body: { logs: entries.map(toLine), logEntries: entries.map(toEntry) } };
    },

    getSandboxLogsV2: ({ path, query }) => {
      const { cursor, direction = 'backward', limit = 1000, level, search } = query;
      const place = direction === 'forward' ? { from: cursor } : { before: cursor };
      const entries = read(path.sandboxID, { ...place, limit, direction, level, search });
      return { status: 200, body: { logs: entries.map(toEntry) } };
    },
  };
}

/** The form older clients and the CLI read: JSON as text, with at least level and logger (trap T18). */
function toLine({ at, level, logger, message, fields }: StoredLogEntry): { timestamp: string; line: string } {
  return { timestamp: time(at), line: JSON.stringify({ ...fields, level, logger, message }) };
}

function toEntry({ at, level, logger, message, fields }: StoredLogEntry): SandboxLogEntry {
  return { timestamp: time(at), level, message, fields: { ...fields, logger } };
}

function time(milliseconds: number): string {
  return new Date(milliseconds).toISOString();
}
