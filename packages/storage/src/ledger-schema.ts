import type { DatabaseSync } from 'node:sqlite';

/** One step per schema version, never edited after a release; `PRAGMA user_version` counts the applied ones. */
const MIGRATIONS: readonly string[] = [
  `CREATE TABLE sandboxes (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
   CREATE TABLE templates (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;`,
  'CREATE TABLE snapshots (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;',
];

/** Schema version this program writes. */
export const LEDGER_SCHEMA_VERSION = MIGRATIONS.length;

/** The file was written by a newer program. */
export class NewerSchema extends Error {
  readonly found: number;

  constructor(found: number) {
    super(`schema version ${found}, this program knows up to ${LEDGER_SCHEMA_VERSION}`);
    this.name = 'NewerSchema';
    this.found = found;
  }
}

/** Brings the file to the current schema, all of it or nothing. */
export function migrate(database: DatabaseSync): void {
  const found = Number(database.prepare('PRAGMA user_version').get()?.user_version ?? 0);
  if (found > LEDGER_SCHEMA_VERSION) throw new NewerSchema(found);
  if (found === LEDGER_SCHEMA_VERSION) return;
  database.exec('BEGIN IMMEDIATE');
  try {
    for (const step of MIGRATIONS.slice(found)) database.exec(step);
    database.exec(`PRAGMA user_version = ${LEDGER_SCHEMA_VERSION}`);
    database.exec('COMMIT');
  } catch (error) {
    if (database.isTransaction) database.exec('ROLLBACK');
    throw error;
  }
}
