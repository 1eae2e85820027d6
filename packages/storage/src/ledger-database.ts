import { DatabaseSync, type StatementSync } from 'node:sqlite';
import type { LedgerRow, LedgerTable, LedgerWorkerData, LedgerWrite } from './ledger-messages.ts';
import { migrate } from './ledger-schema.ts';

/** The synchronous half of the ledger; lives in the worker thread only. */
export interface LedgerDatabase extends Disposable {
  /** One transaction: on disk when it returns, nothing of it when it throws. */
  commit(writes: readonly LedgerWrite[]): void;
  load(table: LedgerTable): readonly LedgerRow[];
  /**
   * Moves everything committed from the journal of writes into the database itself and empties the journal. A ledger this
   * small would never do that by itself, and SQLite takes a damaged journal for one that was never written. What fails
   * here stays in the journal, where it is as durable.
   */
  checkpoint(): void;
}

/** How long the lock of another process is waited for, milliseconds: a server that was just killed lets go at once. */
const LOCK_WAIT_MS = 1_000;

export function openLedgerDatabase(options: LedgerWorkerData): LedgerDatabase {
  const database = new DatabaseSync(options.path, { timeout: LOCK_WAIT_MS });
  try {
    // Exclusive: one writer by construction, a second server on the same file is refused instead of racing with this one.
    database.exec('PRAGMA locking_mode = EXCLUSIVE');
    database.exec('PRAGMA journal_mode = WAL');
    database.exec('PRAGMA synchronous = FULL');
    if (options.maxBytes !== undefined) {
      const pageSize = Number(database.prepare('PRAGMA page_size').get()?.page_size);
      database.exec(`PRAGMA max_page_count = ${Math.floor(options.maxBytes / pageSize)}`);
    }
    migrate(database);
    // Takes the exclusive lock now, so that a second server learns of it at its start and not at its first write.
    database.exec('BEGIN IMMEDIATE; COMMIT');
  } catch (error) {
    database.close();
    throw error;
  }
  const prepare = (table: LedgerTable) => ({
    put: database.prepare(
      `INSERT INTO ${table} (id, record) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET record = excluded.record`,
    ),
    delete: database.prepare(`DELETE FROM ${table} WHERE id = ?`),
    load: database.prepare(`SELECT id, record FROM ${table} ORDER BY id`),
  });
  const statements: Record<LedgerTable, Record<'put' | 'delete' | 'load', StatementSync>> = {
    sandboxes: prepare('sandboxes'),
    templates: prepare('templates'),
    snapshots: prepare('snapshots'),
  };
  return {
    commit(writes) {
      database.exec('BEGIN IMMEDIATE');
      try {
        for (const write of writes) {
          if (write.kind === 'put') statements[write.table].put.run(write.id, write.record);
          else statements[write.table].delete.run(write.id);
        }
        database.exec('COMMIT');
      } catch (error) {
        // SQLite itself rolls back on some failures, such as a full disk.
        if (database.isTransaction) database.exec('ROLLBACK');
        throw error;
      }
    },
    checkpoint() {
      try {
        database.exec('PRAGMA wal_checkpoint(TRUNCATE)');
      } catch {
        // Such as a full disk: nothing is lost, and the next one moves all of it.
      }
    },
    load: (table) => statements[table].load.all().map((row) => ({ id: String(row.id), record: String(row.record) })),
    [Symbol.dispose]() {
      database.close();
    },
  };
}
