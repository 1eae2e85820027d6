import { spawn } from 'node:child_process';
import { copyFile, mkdtemp, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { DatabaseSync } from 'node:sqlite';
import { fileURLToPath } from 'node:url';
import { type SandboxRecord, SILENT_LOG } from '@agentenv/core';
import { sandboxRecord } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { openLedger } from './sqlite-ledger.ts';
import { createMemoryDisk, describeLedgerContract, openMemoryLedger } from './testing/index.ts';

async function temporaryDirectory(): Promise<AsyncDisposable & { readonly path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'ledger-'));
  return {
    path,
    async [Symbol.asyncDispose]() {
      await rm(path, { recursive: true, force: true });
    },
  };
}

const numbered = (number: number): SandboxRecord =>
  sandboxRecord({ id: `i${String(number).padStart(20, '0')}` as SandboxRecord['id'], timeoutSeconds: number });

describeLedgerContract('the sqlite ledger', async () => {
  const directory = await temporaryDirectory();
  const path = join(directory.path, 'ledger.db');
  return {
    open: (log) => openLedger({ path, log }),
    async writeRow(table, id, json) {
      await (await openLedger({ path, log: SILENT_LOG }))[Symbol.asyncDispose]();
      const database = new DatabaseSync(path);
      database.prepare(`INSERT INTO ${table} (id, record) VALUES (?, ?)`).run(id, json);
      database.close();
    },
    [Symbol.asyncDispose]: () => directory[Symbol.asyncDispose](),
  };
});

describeLedgerContract('the memory ledger', async () => {
  const disk = createMemoryDisk();
  return {
    open: async (log) => openMemoryLedger({ disk, log }),
    async writeRow(table, id, json) {
      disk[table].set(id, json);
    },
    async [Symbol.asyncDispose]() {},
  };
});

describe('the sqlite ledger', { timeout: 20_000 }, () => {
  test('after kill -9 everything that was acknowledged is there', { timeout: 60_000 }, async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, 'ledger.db');
    for (const acknowledgements of [1, 50, 400]) {
      const present = new Set<number>();
      const deleted = new Set<number>();
      const child = spawn(
        process.execPath,
        [fileURLToPath(new URL('./testing/ledger-writer.ts', import.meta.url)), path],
        { stdio: ['ignore', 'pipe', 'inherit'] },
      );
      const ended = new Promise<NodeJS.Signals | null>((resolve) =>
        child.once('exit', (_code, signal) => resolve(signal)),
      );
      try {
        for await (const line of createInterface({ input: child.stdout })) {
          (line.startsWith('+') ? present : deleted).add(Number(line.slice(1)));
          if (present.size + deleted.size === acknowledgements) child.kill('SIGKILL');
        }
      } finally {
        child.kill('SIGKILL');
      }
      expect(await ended).toBe('SIGKILL');
      expect(present.size + deleted.size).toBeGreaterThanOrEqual(acknowledgements);
      await using ledger = await openLedger({ path, log: SILENT_LOG });
      const found = new Map((await ledger.loadSandboxes()).records.map((record) => [record.timeoutSeconds, record]));
      for (const number of present) expect(found.get(number)).toEqual(numbered(number));
      for (const number of deleted) expect(found.has(number)).toBe(false);
      for (const record of found.values()) await ledger.deleteSandbox(record.id);
    }
  });

  test('what was written a while ago does not depend on the journal of writes any more', async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, 'ledger.db');
    await using ledger = await openLedger({ path, log: SILENT_LOG });
    await ledger.putSandbox(numbered(1));
    expect((await stat(`${path}-wal`)).size).toBeGreaterThan(0);
    await expect.poll(async () => (await stat(`${path}-wal`)).size, { timeout: 10_000 }).toBe(0);
    const copy = join(directory.path, 'copy.db');
    await copyFile(path, copy);
    await using copied = await openLedger({ path: copy, log: SILENT_LOG });
    expect((await copied.loadSandboxes()).records).toEqual([numbered(1)]);
  });

  test('writes of one turn share a transaction: 2 000 of them cost few disk syncs', async () => {
    await using directory = await temporaryDirectory();
    await using ledger = await openLedger({ path: join(directory.path, 'ledger.db'), log: SILENT_LOG });
    const alone = performance.now();
    for (let number = 0; number < 20; number++) await ledger.putSandbox(numbered(number));
    const perWrite = (performance.now() - alone) / 20;
    const together = performance.now();
    await Promise.all(Array.from({ length: 2_000 }, (_, number) => ledger.putSandbox(numbered(number))));
    expect((performance.now() - together) / 2_000).toBeLessThan(perWrite / 2);
    expect((await ledger.loadSandboxes()).records).toHaveLength(2_000);
  });

  test('a full disk is no_space, loses nothing that was acknowledged and recovers when there is room', async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, 'ledger.db');
    const acknowledged: number[] = [];
    {
      await using ledger = await openLedger({ path, log: SILENT_LOG, maxBytes: 128 * 1024 });
      let refusal: unknown;
      for (let number = 0; refusal === undefined; number++) {
        expect(number).toBeLessThan(10_000);
        await ledger.putSandbox(numbered(number)).then(
          () => acknowledged.push(number),
          (error) => {
            refusal = error;
          },
        );
      }
      expect(refusal).toMatchObject({
        code: 'no_space',
        message: 'no space left for the ledger on the data disk',
      });
      expect(acknowledged.length).toBeGreaterThan(50);
      for (const number of acknowledged.splice(0, 40)) await ledger.deleteSandbox(numbered(number).id);
      await ledger.putSandbox(numbered(99_999));
      acknowledged.push(99_999);
    }
    await using again = await openLedger({ path, log: SILENT_LOG });
    expect((await again.loadSandboxes()).records.map((record) => record.timeoutSeconds)).toEqual(acknowledged);
  });

  test('a second server on the same file is refused at its start and gets it when the first is gone', async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, 'ledger.db');
    {
      await using _first = await openLedger({ path, log: SILENT_LOG });
      await expect(openLedger({ path, log: SILENT_LOG })).rejects.toMatchObject({
        code: 'unavailable',
        message: 'the ledger is in use by another server',
      });
    }
    await using second = await openLedger({ path, log: SILENT_LOG });
    expect((await second.loadSandboxes()).records).toEqual([]);
  });

  test('the file of a newer program is refused and left as it is', async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, 'ledger.db');
    await (await openLedger({ path, log: SILENT_LOG }))[Symbol.asyncDispose]();
    const database = new DatabaseSync(path);
    database.exec('PRAGMA user_version = 99');
    database.close();
    await expect(openLedger({ path, log: SILENT_LOG })).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining('schema version 99'),
    });
    const after = new DatabaseSync(path);
    expect(after.prepare('PRAGMA user_version').get()).toMatchObject({ user_version: 99 });
    after.close();
  });

  test('a file that is no database is refused and a directory that is missing as well', async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, 'ledger.db');
    await writeFile(path, 'this is not a database '.repeat(100));
    await expect(openLedger({ path, log: SILENT_LOG })).rejects.toMatchObject({
      code: 'internal',
      message: 'the ledger is damaged or not a ledger',
    });
    await expect(openLedger({ path: join(directory.path, 'no/ledger.db'), log: SILENT_LOG })).rejects.toMatchObject({
      message: 'the ledger cannot be opened',
    });
  });

  test('only its owner may read it: it holds channel secrets', async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, 'ledger.db');
    await using ledger = await openLedger({ path, log: SILENT_LOG });
    await ledger.putSandbox(numbered(1));
    expect((await stat(path)).mode & 0o777).toBe(0o600);
    expect((await stat(`${path}-wal`)).mode & 0o777).toBe(0o600);
  });

  test('writes beyond the bound are refused instead of filling memory', async () => {
    await using directory = await temporaryDirectory();
    await using ledger = await openLedger({
      path: join(directory.path, 'ledger.db'),
      log: SILENT_LOG,
      maxPending: 10,
    });
    const writes = Array.from({ length: 15 }, (_, number) => ledger.putSandbox(numbered(number)));
    const outcomes = await Promise.allSettled(writes);
    expect(outcomes.filter((outcome) => outcome.status === 'fulfilled')).toHaveLength(10);
    expect(outcomes.find((outcome) => outcome.status === 'rejected')?.reason).toMatchObject({ code: 'unavailable' });
  });
});
