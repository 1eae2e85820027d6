import { parentPort, workerData } from 'node:worker_threads';
import { type LedgerDatabase, openLedgerDatabase } from './ledger-database.ts';
import type { LedgerFault, LedgerReply, LedgerRequest, LedgerWorkerData } from './ledger-messages.ts';

/** Quiet time after which what was committed is moved into the database, milliseconds: hardly ever while somebody waits for a commit. */
const QUIET_MS = 1_000;

/** Entry of the ledger's worker thread: opens the file, answers once, then answers every request in order. */
function main(): void {
  const port = parentPort;
  if (port === null) throw new Error('the ledger worker runs as a worker thread only');
  const answer = (work: () => LedgerReply): void => {
    let reply: LedgerReply;
    try {
      reply = work();
    } catch (error) {
      reply = { ok: false, fault: describeFault(error) };
    }
    port.postMessage(reply);
  };

  let database: LedgerDatabase | undefined;
  answer(() => {
    database = openLedgerDatabase(workerData as LedgerWorkerData);
    return { ok: true, rows: [] };
  });
  const opened = database;
  if (opened === undefined) return;

  const quiet = setTimeout(() => opened.checkpoint(), QUIET_MS).unref();
  port.on('message', (request: LedgerRequest) => {
    answer(() => {
      switch (request.kind) {
        case 'commit':
          quiet.refresh();
          opened.commit(request.writes);
          return { ok: true, rows: [] };
        case 'load':
          return { ok: true, rows: opened.load(request.table) };
        case 'close':
          opened[Symbol.dispose]();
          return { ok: true, rows: [] };
      }
    });
    if (request.kind !== 'close') return;
    clearTimeout(quiet);
    port.close();
  });
}

function describeFault(error: unknown): LedgerFault {
  if (!(error instanceof Error)) return { name: 'Error', message: String(error), sqliteCode: undefined };
  const code = 'errcode' in error && typeof error.errcode === 'number' ? error.errcode & 0xff : undefined;
  return { name: error.name, message: error.message, sqliteCode: code };
}

main();
