import { type Clock, isAtLeast, type SandboxLogEntry, type SandboxLogLevel } from '@agentenv/core';

/** An entry and when it happened: milliseconds since the epoch, unique within its sandbox. */
export interface StoredLogEntry extends SandboxLogEntry {
  readonly at: number;
}

export interface LogQuery {
  /** Only entries at or after this time. */
  readonly from?: number | undefined;
  /** Only entries before this time. */
  readonly before?: number | undefined;
  readonly limit: number;
  /** `forward`: the oldest ones, oldest first; `backward`: the newest ones, newest first. */
  readonly direction: 'forward' | 'backward';
  readonly level?: SandboxLogLevel | undefined;
  /** Text the message has to contain. */
  readonly search?: string | undefined;
}

export interface SandboxLogLimits {
  /** Entries kept of one sandbox; the oldest go first. */
  readonly entriesPerSandbox: number;
  /** Bytes kept of one sandbox, as estimated here. */
  readonly bytesPerSandbox: number;
  /** Bytes kept of all sandboxes together; the oldest entries go first, whoever has them. */
  readonly bytes: number;
  /** How long the log of a sandbox that has ended can still be read, milliseconds. */
  readonly retentionMs: number;
}

export const DEFAULT_SANDBOX_LOG_LIMITS: Omit<SandboxLogLimits, 'retentionMs'> = {
  entriesPerSandbox: 1_000,
  bytesPerSandbox: 256 * 1024,
  bytes: 32 * 1024 * 1024,
};

/**
 * What happened to each sandbox, in memory and bounded in every direction. Times of one sandbox never repeat and never go
 * back: a reader that goes on one millisecond behind the last entry it saw misses nothing and sees nothing twice, whatever
 * the wall clock does (a burst of entries moves ahead of it by a millisecond each).
 */
export interface SandboxLogs extends Disposable {
  /** Starts the log of a sandbox, or goes on with it. Entries of one that was never opened, or is closed, are dropped. */
  open(id: string): void;
  append(id: string, entry: SandboxLogEntry): void;
  /** Nothing more is written; what there is can be read for a while. */
  close(id: string): void;
  /** Undefined: nobody knows that sandbox (any more), or it has ended and the last of its entries had to go. */
  read(id: string, query: LogQuery): readonly StoredLogEntry[] | undefined;
  status(): { readonly sandboxes: number; readonly entries: number; readonly bytes: number; readonly dropped: number };
}

interface Kept {
  readonly entry: StoredLogEntry;
  readonly bytes: number;
  readonly owner: SandboxLog;
}

interface SandboxLog {
  readonly id: string;
  /** In the order of their time. */
  readonly entries: Set<Kept>;
  bytes: number;
  lastAt: number;
  expiry: Disposable | undefined;
  closed: boolean;
}

/** What an entry costs beside its text, bytes; measured, rounded up. */
const ENTRY_OVERHEAD = 256;
const MAX_MESSAGE = 1024;
const MAX_FIELD = 512;
const MAX_FIELDS = 16;

export function createSandboxLogs(deps: { readonly clock: Clock; readonly limits: SandboxLogLimits }): SandboxLogs {
  const { clock, limits } = deps;
  const logs = new Map<string, SandboxLog>();
  /** Of all sandboxes, in the order they came. */
  const everything = new Set<Kept>();
  let bytes = 0;
  let dropped = 0;

  function remove(kept: Kept): void {
    kept.owner.entries.delete(kept);
    kept.owner.bytes -= kept.bytes;
    everything.delete(kept);
    bytes -= kept.bytes;
  }

  function removeOldest(entries: ReadonlySet<Kept>): void {
    for (const kept of entries) {
      remove(kept);
      dropped++;
      // Nothing will be written there, and ended sandboxes without number must not be kept for nothing.
      if (kept.owner.closed && kept.owner.entries.size === 0) forget(kept.owner.id);
      return;
    }
  }

  function forget(id: string): void {
    const log = logs.get(id);
    if (log === undefined) return;
    log.expiry?.[Symbol.dispose]();
    for (const kept of log.entries) remove(kept);
    logs.delete(id);
  }

  return {
    open(id) {
      if (logs.has(id)) return;
      logs.set(id, { id, entries: new Set(), bytes: 0, lastAt: 0, expiry: undefined, closed: false });
    },
    append(id, entry) {
      const owner = logs.get(id);
      if (owner === undefined || owner.closed) return;
      const at = Math.max(Math.trunc(clock.now()), owner.lastAt + 1);
      owner.lastAt = at;
      const stored = { ...bounded(entry), at };
      const kept: Kept = { entry: stored, bytes: sizeOf(stored), owner };
      owner.entries.add(kept);
      everything.add(kept);
      owner.bytes += kept.bytes;
      bytes += kept.bytes;
      while (owner.entries.size > limits.entriesPerSandbox || owner.bytes > limits.bytesPerSandbox) {
        removeOldest(owner.entries);
      }
      while (bytes > limits.bytes) removeOldest(everything);
    },
    close(id) {
      const log = logs.get(id);
      if (log === undefined || log.closed) return;
      log.closed = true;
      log.expiry = clock.timer(limits.retentionMs, () => forget(id));
    },
    read(id, query) {
      const log = logs.get(id);
      if (log === undefined) return undefined;
      const matching: StoredLogEntry[] = [];
      for (const { entry } of log.entries) if (matches(entry, query)) matching.push(entry);
      if (query.direction === 'backward') matching.reverse();
      return matching.slice(0, query.limit);
    },
    status: () => ({ sandboxes: logs.size, entries: everything.size, bytes, dropped }),
    [Symbol.dispose]() {
      for (const id of [...logs.keys()]) forget(id);
    },
  };
}

function matches({ at, level, message }: StoredLogEntry, query: LogQuery): boolean {
  return (
    (query.from === undefined || at >= query.from) &&
    (query.before === undefined || at < query.before) &&
    (query.level === undefined || isAtLeast(level, query.level)) &&
    (query.search === undefined || message.includes(query.search))
  );
}

/** No part of an entry is longer than a reader has use for, whoever wrote it. */
function bounded({ level, logger, message, fields }: SandboxLogEntry): SandboxLogEntry {
  const shortened = Object.entries(fields)
    .slice(0, MAX_FIELDS)
    .map(([name, value]) => [name, value.slice(0, MAX_FIELD)] as const);
  return { level, logger, message: message.slice(0, MAX_MESSAGE), fields: Object.fromEntries(shortened) };
}

function sizeOf({ message, fields }: SandboxLogEntry): number {
  let characters = message.length;
  for (const [name, value] of Object.entries(fields)) characters += name.length + value.length;
  return ENTRY_OVERHEAD + 2 * characters;
}
