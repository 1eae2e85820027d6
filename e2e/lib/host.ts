import { createHash } from 'node:crypto';
import { copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import type { TestServer } from './server.ts';

/** Command lines of all live processes (zombies have none), by pid. */
export function commandLines(): Map<number, string> {
  const found = new Map<number, string>();
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    try {
      const line = readFileSync(`/proc/${entry}/cmdline`, 'utf8').replaceAll('\0', ' ').trim();
      if (line !== '') found.set(Number(entry), line);
    } catch {
      // It ended while we looked.
    }
  }
  return found;
}

/** How the names of a server's engines and of their control groups begin: with a digest of its home. */
export function engineTag(server: TestServer): string {
  return `aenv-${createHash('sha256').update(join(server.home, 'qemu')).digest('hex').slice(0, 8)}-`;
}

/** Names of the engines of one server, those in its pool included, by pid. */
export function engineNames(server: TestServer): Map<number, string> {
  const named = new RegExp(`guest=(${engineTag(server)}[0-9a-f]+)`);
  return new Map(
    [...commandLines()].flatMap(([pid, line]) => {
      const name = named.exec(line)?.[1];
      return name === undefined ? [] : [[pid, name] as const];
    }),
  );
}

/** Pids of the engines of one server, those in its pool included. */
export function engines(server: TestServer): number[] {
  return [...engineNames(server).keys()];
}

/** The engine's pid of a running sandbox, as the server's ledger has it. */
export function enginePid(server: TestServer, sandboxId: string): number {
  using database = openLedger(server);
  const row = database.handle.prepare('SELECT record FROM sandboxes WHERE id = ?').get(sandboxId);
  const record = JSON.parse(String(row?.record)) as { runtime?: Record<string, unknown> };
  const pid = findPid(record.runtime);
  if (pid === undefined) throw new Error(`the ledger knows no engine of ${sandboxId}: ${JSON.stringify(record)}`);
  return pid;
}

/** Ids the ledger holds. */
export function ledgerIds(server: TestServer): string[] {
  using database = openLedger(server);
  return database.handle
    .prepare('SELECT id FROM sandboxes')
    .all()
    .map((row) => String(row.id));
}

/** Every record of sandboxes and snapshots, as it is written. */
export function ledgerText(server: TestServer): string {
  using database = openLedger(server);
  const rows = database.handle.prepare('SELECT id, record FROM sandboxes UNION ALL SELECT id, record FROM snapshots');
  return rows
    .all()
    .map(({ id, record }) => `${id} ${record}`)
    .join('\n');
}

/** A copy of the ledger as it is on disk: the server holds the original with an exclusive lock. */
function openLedger(server: TestServer): Disposable & { readonly handle: DatabaseSync } {
  const copy = mkdtempSync(join(tmpdir(), 'aenv-ledger-'));
  const names = readdirSync(server.home).filter((entry) => /^ledger\.\w+(-wal)?$/.test(entry));
  // Written or moved from one file to the other in between, they would not belong together.
  const versions = () =>
    names
      .map((name) => statSync(join(server.home, name), { bigint: true }))
      .map(({ ino, size, mtimeNs }) => [ino, size, mtimeNs].join())
      .join();
  for (let before = ''; before !== versions(); ) {
    before = versions();
    for (const name of names) copyFileSync(join(server.home, name), join(copy, name));
  }
  const file = readdirSync(copy).find((name) => !name.endsWith('-wal'));
  if (file === undefined) throw new Error(`no ledger in ${server.home}`);
  const handle = new DatabaseSync(join(copy, file));
  return {
    handle,
    [Symbol.dispose]() {
      handle.close();
      rmSync(copy, { recursive: true });
    },
  };
}

function findPid(value: unknown): number | undefined {
  if (typeof value !== 'object' || value === null) return undefined;
  if ('pid' in value && typeof value.pid === 'number') return value.pid;
  for (const inner of Object.values(value)) {
    const pid = findPid(inner);
    if (pid !== undefined) return pid;
  }
  return undefined;
}

/** Pids of what a process started and has not seen the end of. */
export function childrenOf(pid: number): number[] {
  return readdirSync(`/proc/${pid}/task`).flatMap((thread) =>
    readFileSync(`/proc/${pid}/task/${thread}/children`, 'utf8').split(' ').filter(Boolean).map(Number),
  );
}

/** Resident bytes of a process. */
export function residentBytes(pid: number): number {
  return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) * 1024;
}

/** Proportional set size of a process, bytes. */
export function proportionalBytes(pid: number): number {
  return Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))?.[1]) * 1024;
}

/** Bytes that would be free without a process: those it shares with nobody. */
export function privateBytes(pid: number): number {
  const rollup = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
  return (
    [...rollup.matchAll(/^Private_(?:Clean|Dirty):\s+(\d+)/gm)].reduce((sum, found) => sum + Number(found[1]), 0) * 1024
  );
}

/** CPU seconds a process has used. */
export function cpuSeconds(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}
