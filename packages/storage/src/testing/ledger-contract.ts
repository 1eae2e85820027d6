import type { Log, SandboxRecord, SnapshotRecord } from '@agentenv/core';
import { createRecordingLog, type RecordingLog, sandboxRecord, snapshotRecord } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Ledger, TemplateRecord } from '../ledger.ts';

/** One place a ledger writes to, for the length of one test. */
export interface LedgerPlace extends AsyncDisposable {
  /** Opens it; again after the ledger before was disposed. */
  open(log: Log): Promise<Ledger>;
  /** Puts a row there behind the ledger's back, while it is closed. */
  writeRow(table: 'sandboxes' | 'templates' | 'snapshots', id: string, json: string): Promise<void>;
}

const idNumber = (number: number): SandboxRecord['id'] => `i${String(number).padStart(20, '0')}` as SandboxRecord['id'];

const template: TemplateRecord = {
  id: 'i0000000000000000base',
  buildId: '019b76da-a800-7000-8000-0000000000aa',
  names: ['base'],
  vcpus: 2,
  memoryMB: 1024,
  diskSizeMB: 10_240,
  envdVersion: '0.6.13',
  createdAt: 1,
  updatedAt: 2,
  spawnCount: 3,
  lastSpawnedAt: undefined,
  sourceDigest: 'ab'.repeat(32),
};

const snapshot = snapshotRecord({
  tags: ['default', 'v1'],
  context: {
    ...{ envVars: { A: 'ü' }, defaultUser: 'user', defaultWorkdir: undefined },
    customExtensionParams: { a: [1, { b: null }] },
  },
});

/** What every ledger has to do, on whatever it writes to. */
export function describeLedgerContract(name: string, createPlace: () => Promise<LedgerPlace>): void {
  describe(`${name} keeps the ledger contract`, { timeout: 20_000 }, () => {
    let place: LedgerPlace;
    let log: RecordingLog;

    beforeEach(async () => {
      place = await createPlace();
      log = createRecordingLog();
    });
    afterEach(async () => {
      await place[Symbol.asyncDispose]();
    });

    test('a new ledger is empty', async () => {
      await using ledger = await place.open(log);
      expect((await ledger.loadSandboxes()).records).toEqual([]);
      expect(await ledger.loadTemplates()).toEqual([]);
      expect(await ledger.loadSnapshots()).toEqual({ records: [], unreadable: [] });
    });

    test('records come back as they were written, after a restart too', async () => {
      const full = sandboxRecord({
        id: idNumber(1),
        state: 'creating',
        deadline: undefined,
        metadata: { 'key with "quotes"': 'välue\n', __proto__x: '1' },
        envVars: { PATH: '/bin' },
        defaultWorkdir: '/home/user',
        network: {
          allowInternetAccess: false,
          allowOut: ['10.0.0.0/8'],
          denyOut: ['0.0.0.0/0', '::/0'],
          allowPublicTraffic: false,
          maskRequestHost: 'localhost',
        },
        runtime: { pid: 4711, startTime: '123', nested: { uuid: 'x' } },
        engineGone: true,
      });
      const bare = sandboxRecord({ id: idNumber(2), alias: undefined });
      {
        await using ledger = await place.open(log);
        await Promise.all([ledger.putSandbox(full), ledger.putSandbox(bare), ledger.putTemplate(template)]);
        expect((await ledger.loadSandboxes()).records).toEqual([full, bare]);
      }
      await using again = await place.open(log);
      expect((await again.loadSandboxes()).records).toEqual([full, bare]);
      expect(await again.loadTemplates()).toEqual([template]);
      expect(log.find('error')).toEqual([]);
    });

    test('snapshots are written and deleted several at once, and those that cannot be read are named', async () => {
      const second = { ...snapshot, buildId: '019b76da-a800-7000-8000-0000000000cc' as SnapshotRecord['buildId'] };
      const third = { ...second, buildId: '019b76da-a800-7000-8000-0000000000dd' as SnapshotRecord['buildId'] };
      const unreadable = '019b76da-a800-7000-8000-0000000000ee';
      await place.writeRow('snapshots', unreadable, JSON.stringify({ ...snapshot, context: undefined }));
      {
        await using ledger = await place.open(log);
        await ledger.putSnapshots([snapshot, second, third]);
        await ledger.putSnapshots([{ ...snapshot, tags: [] }]);
        await ledger.deleteSnapshots([second.buildId, second.buildId]);
        await ledger.deleteSnapshots([]);
      }
      await using again = await place.open(log);
      expect(await again.loadSnapshots()).toEqual({
        records: [{ ...snapshot, tags: [] }, third],
        unreadable: [unreadable],
      });
      expect(log.find('error')[0]).toMatchObject({ fields: { id: unreadable } });
    });

    test('put replaces, delete forgets and forgives what is absent', async () => {
      await using ledger = await place.open(log);
      const record = sandboxRecord();
      await ledger.putSandbox(record);
      await ledger.putSandbox({ ...record, state: 'killing' });
      expect((await ledger.loadSandboxes()).records).toEqual([{ ...record, state: 'killing' }]);
      await ledger.deleteSandbox(record.id);
      await ledger.deleteSandbox(record.id);
      await ledger.deleteSandbox(idNumber(9));
      expect((await ledger.loadSandboxes()).records).toEqual([]);
    });

    test('writes take effect in the order of the calls and a load sees every write before it', async () => {
      await using ledger = await place.open(log);
      const writes: Promise<void>[] = [];
      for (let number = 0; number < 300; number++) {
        const record = sandboxRecord({ id: idNumber(number % 10) });
        writes.push(
          number % 3 === 2 ? ledger.deleteSandbox(record.id) : ledger.putSandbox({ ...record, timeoutSeconds: number }),
        );
      }
      const loaded = (await ledger.loadSandboxes()).records;
      await Promise.all(writes);
      const expected = new Map<string, number>();
      for (let number = 0; number < 300; number++) {
        if (number % 3 === 2) expected.delete(idNumber(number % 10));
        else expected.set(idNumber(number % 10), number);
      }
      expect(new Map(loaded.map((record) => [record.id, record.timeoutSeconds]))).toEqual(expected);
    });

    test('unknown keys of a newer program do not stand in the way', async () => {
      const record = sandboxRecord();
      await place.writeRow('sandboxes', record.id, JSON.stringify({ ...record, volumes: [{ name: 'data' }] }));
      await place.writeRow('templates', template.id, JSON.stringify({ ...template, tags: ['default'] }));
      await using ledger = await place.open(log);
      expect((await ledger.loadSandboxes()).records).toEqual([record]);
      expect(await ledger.loadTemplates()).toEqual([template]);
      expect(log.find('error')).toEqual([]);
    });

    test.each([
      ['text that is not JSON', '{"id": "i0'],
      ['a list', '[]'],
      ['a missing field', JSON.stringify({ ...sandboxRecord({ id: idNumber(2) }), channelKey: undefined })],
      ['an unknown state', JSON.stringify({ ...sandboxRecord({ id: idNumber(2) }), state: 'dreaming' })],
      ['a wrong type', JSON.stringify({ ...sandboxRecord({ id: idNumber(2) }), metadata: { a: 1 } })],
    ])('%s is reported with its id and skipped, everything else loads', async (_case, json) => {
      const readable = sandboxRecord({ id: idNumber(1) });
      await place.writeRow('sandboxes', idNumber(2), json);
      await using ledger = await place.open(log);
      await ledger.putSandbox(readable);
      expect((await ledger.loadSandboxes()).records).toEqual([readable]);
      expect(log.find('error')).toHaveLength(1);
      expect(log.find('error')[0]).toMatchObject({ fields: { id: idNumber(2) } });
    });

    test('a closed ledger refuses everything and may be closed again', async () => {
      const ledger = await place.open(log);
      const write = ledger.putSandbox(sandboxRecord());
      await ledger[Symbol.asyncDispose]();
      await ledger[Symbol.asyncDispose]();
      await write;
      await expect(ledger.putSandbox(sandboxRecord())).rejects.toMatchObject({ code: 'unavailable' });
      await expect(ledger.deleteSandbox(idNumber(1))).rejects.toMatchObject({ code: 'unavailable' });
      await expect(ledger.loadSandboxes()).rejects.toMatchObject({ code: 'unavailable' });
      await using again = await place.open(log);
      expect((await again.loadSandboxes()).records).toHaveLength(1);
    });
  });
}
