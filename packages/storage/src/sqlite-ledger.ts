import { chmod, open } from 'node:fs/promises';
import { Worker } from 'node:worker_threads';
import { type Log, PlatformError } from '@agentenv/core';
import type { Ledger, LoadedRecords } from './ledger.ts';
import type {
  LedgerFault,
  LedgerReply,
  LedgerRequest,
  LedgerRow,
  LedgerTable,
  LedgerWorkerData,
  LedgerWrite,
} from './ledger-messages.ts';
import { decodeSandboxRecord, decodeSnapshotRecord, decodeTemplateRecord, encodeRecord } from './record-codec.ts';

export interface OpenLedgerOptions {
  /** File of the database; its directory exists. Created with mode 0600, it holds channel secrets. */
  readonly path: string;
  readonly log: Log;
  /** Largest size of the file, bytes; beyond it writes are refused with `no_space`. Unset: the disk is the limit. */
  readonly maxBytes?: number;
  /** Writes that may wait for the disk; more are refused with `unavailable`. */
  readonly maxPending?: number;
}

const SQLITE_BUSY = 5;
const SQLITE_LOCKED = 6;
const SQLITE_CORRUPT = 11;
const SQLITE_FULL = 13;
const SQLITE_CANTOPEN = 14;
const SQLITE_NOTADB = 26;

function toPlatformError(path: string, fault: LedgerFault): PlatformError {
  const details = { path, sqliteCode: fault.sqliteCode };
  const cause = new Error(`${fault.name}: ${fault.message}`);
  const of = (code: PlatformError['code'], message: string): PlatformError =>
    new PlatformError(code, message, { details, cause });
  if (fault.name === 'NewerSchema') {
    return of('conflict', `the ledger was written by a newer version of this program: ${fault.message}`);
  }
  switch (fault.sqliteCode) {
    case SQLITE_FULL:
      return of('no_space', 'no space left for the ledger on the data disk');
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return of('unavailable', 'the ledger is in use by another server');
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return of('internal', 'the ledger is damaged or not a ledger');
    case SQLITE_CANTOPEN:
      return of('internal', 'the ledger cannot be opened');
    default:
      return of('internal', 'the ledger cannot be written');
  }
}

interface PendingWrite extends PromiseWithResolvers<void> {
  /** All of them or none. */
  readonly writes: readonly LedgerWrite[];
}

/**
 * Opens the ledger of a server. Failures: `unavailable` when another server has it, `conflict` when a newer program wrote
 * it, `internal` when it is damaged.
 */
export async function openLedger(options: OpenLedgerOptions): Promise<Ledger> {
  const { path, log } = options;
  const maxPending = options.maxPending ?? 100_000;
  try {
    await (await open(path, 'a', 0o600)).close();
    await chmod(path, 0o600);
  } catch (error) {
    throw new PlatformError('internal', 'the ledger cannot be opened', { details: { path }, cause: error });
  }
  const workerData: LedgerWorkerData = { path, maxBytes: options.maxBytes };
  const worker = new Worker(new URL('./ledger-worker.ts', import.meta.url), { workerData, name: 'ledger' });

  /** Requests the worker has not answered yet, in order; the opening counts as the first. */
  const unanswered: PromiseWithResolvers<readonly LedgerRow[]>[] = [];
  let pending: PendingWrite[] = [];
  let committing = false;
  let broken: PlatformError | undefined;
  let closing: Promise<void> | undefined;

  function settleReferences(): void {
    // The thread keeps the process alive only while somebody waits for it.
    if (unanswered.length > 0) worker.ref();
    else worker.unref();
  }

  function expectReply(): Promise<readonly LedgerRow[]> {
    const reply = Promise.withResolvers<readonly LedgerRow[]>();
    unanswered.push(reply);
    settleReferences();
    return reply.promise;
  }

  function request(message: LedgerRequest): Promise<readonly LedgerRow[]> {
    if (broken !== undefined) return Promise.reject(broken);
    const reply = expectReply();
    worker.postMessage(message);
    return reply;
  }

  function breakDown(cause: unknown): void {
    broken ??= new PlatformError('unavailable', 'the ledger has stopped', { details: { path }, cause });
    if (closing === undefined) log.error({ path, err: cause }, 'the ledger has stopped');
    for (const reply of unanswered.splice(0)) reply.reject(broken);
    for (const write of pending.splice(0)) write.reject(broken);
  }

  worker.on('message', (reply: LedgerReply) => {
    const waiting = unanswered.shift();
    settleReferences();
    if (reply.ok) waiting?.resolve(reply.rows);
    else waiting?.reject(toPlatformError(path, reply.fault));
  });
  worker.on('error', breakDown);
  worker.on('exit', (code) => breakDown(new Error(`its thread ended with code ${code}`)));

  /** Group commit: everything that was asked for while the last transaction was on its way goes into the next one. */
  async function commitPending(): Promise<void> {
    committing = true;
    while (pending.length > 0) {
      const group = pending;
      pending = [];
      try {
        await request({ kind: 'commit', writes: group.flatMap((item) => item.writes) });
        for (const item of group) item.resolve();
      } catch (error) {
        for (const item of group) item.reject(error);
      }
    }
    committing = false;
  }

  function write(...writes: readonly LedgerWrite[]): Promise<void> {
    if (closing !== undefined) return Promise.reject(new PlatformError('unavailable', 'the ledger is closed'));
    if (broken !== undefined) return Promise.reject(broken);
    if (pending.length >= maxPending) {
      return Promise.reject(new PlatformError('unavailable', 'too many writes wait for the data disk'));
    }
    const result = Promise.withResolvers<void>();
    pending.push({ ...result, writes });
    if (!committing) {
      committing = true;
      // Everything else that is written in this turn joins the same transaction.
      queueMicrotask(() => void commitPending());
    }
    return result.promise;
  }

  async function load<T>(table: LedgerTable, decode: (json: string) => T): Promise<LoadedRecords<T>> {
    if (closing !== undefined) throw new PlatformError('unavailable', 'the ledger is closed');
    const written = pending.at(-1);
    // What is queued here has not reached the worker; a load must see it. Its failure is its own caller's affair.
    await written?.promise.catch(() => undefined);
    const rows = await request({ kind: 'load', table });
    const unreadable: string[] = [];
    const records = rows.flatMap((row) => {
      try {
        return [decode(row.record)];
      } catch (error) {
        log.error({ path, table, id: row.id, err: error }, 'a record of the ledger cannot be read and is skipped');
        unreadable.push(row.id);
        return [];
      }
    });
    return { records, unreadable };
  }

  async function close(): Promise<void> {
    await pending.at(-1)?.promise.catch(() => undefined);
    try {
      await request({ kind: 'close' });
    } finally {
      await worker.terminate();
    }
  }

  try {
    await expectReply();
  } catch (error) {
    closing = Promise.resolve();
    await worker.terminate();
    throw error;
  }
  return {
    loadSandboxes: () => load('sandboxes', decodeSandboxRecord),
    loadTemplates: async () => (await load('templates', decodeTemplateRecord)).records,
    putSandbox: (record) => write({ kind: 'put', table: 'sandboxes', id: record.id, record: encodeRecord(record) }),
    deleteSandbox: (id) => write({ kind: 'delete', table: 'sandboxes', id }),
    putTemplate: (record) => write({ kind: 'put', table: 'templates', id: record.id, record: encodeRecord(record) }),
    loadSnapshots: () => load('snapshots', decodeSnapshotRecord),
    putSnapshots: (records) =>
      write(
        ...records.map((record) => ({
          ...({ kind: 'put', table: 'snapshots' } as const),
          id: record.buildId,
          record: encodeRecord(record),
        })),
      ),
    deleteSnapshots: (ids) => write(...ids.map((id) => ({ kind: 'delete', table: 'snapshots', id }) as const)),
    [Symbol.asyncDispose]() {
      closing ??= close();
      return closing;
    },
  };
}
