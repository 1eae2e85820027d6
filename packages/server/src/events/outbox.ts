import { createReadStream } from 'node:fs';
import { type FileHandle, open, rename } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { LIFECYCLE_EVENT_TYPES, type LifecycleEventType, type Log } from '@agentenv/core';
import type { EventMessage } from './event-bus.ts';
import { createLineWriter } from './line-writer.ts';

/** An event that has not been accepted by these webhooks yet. */
export interface OutboxEntry {
  readonly message: EventMessage;
  readonly webhooks: ReadonlySet<string>;
}

/**
 * What is on its way to webhooks, on disk, so that a server goes on where the one before stopped or died. A journal: lines
 * that add and lines that settle, written behind and not synchronised, so what a host loses with its power is lost here
 * too. Calls never wait and never fail; what cannot be written is an error in the log and kept in memory.
 */
export interface Outbox extends AsyncDisposable {
  /** What the former server left, oldest first. */
  readonly left: readonly OutboxEntry[];
  add(message: EventMessage, webhooks: readonly string[]): void;
  settle(eventId: string, webhook: string): void;
  /** Resolves when everything so far is in the journal, or could not be written. */
  flushed(): Promise<void>;
}

export interface OutboxLimits {
  /** Size from which the journal is written anew, if most of it is settled, bytes. */
  readonly rewriteBytes: number;
  /** What may wait to be written, bytes. */
  readonly waitingBytes: number;
}

export const DEFAULT_OUTBOX_LIMITS: OutboxLimits = {
  rewriteBytes: 1024 * 1024,
  waitingBytes: 64 * 1024 * 1024,
};

interface Open {
  readonly message: EventMessage;
  readonly webhooks: Set<string>;
  readonly bytes: number;
}

const TYPES: ReadonlySet<unknown> = new Set(LIFECYCLE_EVENT_TYPES);
const isText = (value: unknown): value is string => typeof value === 'string';

const addLine = (message: EventMessage, webhooks: Iterable<string>): string =>
  `{"to":${JSON.stringify([...webhooks])},"event":${message.json}}`;

function readMessage(event: unknown): EventMessage | undefined {
  if (typeof event !== 'object' || event === null) return undefined;
  const { id, type, sandbox_id: sandboxId, timestamp } = event as Readonly<Record<string, unknown>>;
  if (!isText(id) || !isText(sandboxId) || !isText(timestamp) || !TYPES.has(type)) return undefined;
  return { id, type: type as LifecycleEventType, sandboxId, at: Date.parse(timestamp), json: JSON.stringify(event) };
}

/** Opens the journal at `path`, whose directory must be there; rejects when it cannot be read or written. */
export async function openOutbox(deps: {
  readonly path: string;
  readonly log: Log;
  readonly limits: OutboxLimits;
}): Promise<Outbox> {
  const { path, limits, log } = deps;
  const unsettled = new Map<string, Open>();
  let unsettledBytes = 0;
  let file: FileHandle | undefined;
  let size = 0;
  /** The journal lacks something, or ends with half a line. */
  let broken = false;
  /** How often lines were dropped. */
  let drops = 0;

  function add(message: EventMessage, webhooks: readonly string[]): void {
    const bytes = Buffer.byteLength(message.json);
    unsettled.set(message.id, { message, webhooks: new Set(webhooks), bytes });
    unsettledBytes += bytes;
  }

  function settle(eventId: string, webhook: string): boolean {
    const entry = unsettled.get(eventId);
    if (entry?.webhooks.delete(webhook) !== true) return false;
    if (entry.webhooks.size === 0) {
      unsettled.delete(eventId);
      unsettledBytes -= entry.bytes;
    }
    return true;
  }

  /** One line of the journal; false when it is none, as the last one of a server that died may be. */
  function replay(line: string): boolean {
    let value: unknown;
    try {
      value = JSON.parse(line);
    } catch {
      return false; // told below, with its number
    }
    if (typeof value !== 'object' || value === null) return false;
    const { to, event, done, by } = value as Readonly<Record<string, unknown>>;
    if (isText(done) && isText(by)) {
      settle(done, by);
      return true;
    }
    const message = readMessage(event);
    if (message === undefined || !Array.isArray(to) || !to.every(isText)) return false;
    add(message, to);
    return true;
  }

  async function load(): Promise<void> {
    let unreadable = 0;
    const input = createReadStream(path, 'utf8');
    try {
      for await (const line of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) {
        if (line !== '' && !replay(line)) unreadable++;
      }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
    if (unreadable > 0) log.warn({ lines: unreadable }, 'lines of the outbox of webhooks could not be read');
  }

  /** Only what is unsettled; in place of the old journal at once or not at all. */
  async function rewrite(): Promise<void> {
    const text = [...unsettled.values()].map(({ message, webhooks }) => `${addLine(message, webhooks)}\n`).join('');
    const fresh = await open(`${path}.new`, 'w', 0o600);
    try {
      await fresh.writeFile(text);
      await rename(`${path}.new`, path);
    } catch (error) {
      await fresh.close();
      throw error;
    }
    await file?.close();
    file = fresh;
    size = Buffer.byteLength(text);
  }

  const writer = createLineWriter({
    maxBytes: limits.waitingBytes,
    onDropped(lines, error) {
      broken = true;
      drops++;
      log.error({ lines, err: error }, 'the outbox of webhooks could not be written');
    },
    async write(lines) {
      const text = lines.join('');
      const overgrown = size > limits.rewriteBytes && size > 2 * unsettledBytes;
      const repairing = broken;
      const before = drops;
      broken = true;
      // What is in memory is ahead of these lines, so it stands for them.
      if (repairing || overgrown) await rewrite();
      else await file?.appendFile(text);
      // What was dropped meanwhile is in none of these lines; the ones that wait make it good.
      broken = drops !== before;
      size += repairing || overgrown ? 0 : Buffer.byteLength(text);
    },
  });

  await load();
  const left = [...unsettled.values()].map(({ message, webhooks }) => ({ message, webhooks: new Set(webhooks) }));
  try {
    await rewrite();
  } catch (error) {
    // A full disk is no reason not to start; what has to be written is tried again with the next line.
    log.error({ err: error }, 'the outbox of webhooks could not be written');
    broken = true;
  }

  return {
    left,
    add(message, webhooks) {
      add(message, webhooks);
      writer.append(addLine(message, webhooks));
    },
    settle(eventId, webhook) {
      if (settle(eventId, webhook)) writer.append(JSON.stringify({ done: eventId, by: webhook }));
    },
    flushed: () => writer.flushed(),
    async [Symbol.asyncDispose]() {
      await writer[Symbol.asyncDispose]();
      await file?.close();
      file = undefined;
    },
  };
}
