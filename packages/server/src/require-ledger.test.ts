import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { CaptureId } from '@agentenv/core';
import { type CaptureStore, openCaptureStore } from '@agentenv/storage';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { requireLedger } from './require-ledger.ts';

const ID = '019b76da-a800-7000-8000-000000000001' as CaptureId;
const MANIFEST = { formatVersion: 1, backend: 'fake', fingerprint: { engine: 'fake-1' }, channelKey: '00'.repeat(16) };

describe('a home without its ledger', () => {
  let home: string;
  let ledger: string;
  let captures: CaptureStore;
  beforeEach(async () => {
    home = await mkdtemp(join(tmpdir(), 'aenv-ledger-'));
    ledger = join(home, 'ledger.sqlite');
    captures = await openCaptureStore({ root: join(home, 'snapshots') });
  });
  afterEach(() => rm(home, { recursive: true, force: true }));

  const complete = async () =>
    await writeFile(join(await captures.allocate(ID), 'manifest.json'), JSON.stringify(MANIFEST));

  it('is new when it has no captures', async () => {
    await expect(requireLedger(ledger, captures)).resolves.toBeUndefined();
  });

  it('is new when what is there was never complete', async () => {
    await captures.allocate(ID);
    await expect(requireLedger(ledger, captures)).resolves.toBeUndefined();
  });

  it.each([
    ['is not there', async () => undefined],
    ['is empty', () => writeFile(ledger, '')],
  ])('is refused beside complete captures when the ledger %s', async (_, prepare) => {
    await complete();
    await prepare();
    await expect(requireLedger(ledger, captures)).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining(`the ledger ${ledger} is gone`),
    });
    expect([...(await captures.list())]).toEqual([ID]);
  });

  it('is refused beside a capture of which it cannot be told whether it is complete', async () => {
    await writeFile(join(await captures.allocate(ID), 'manifest.json'), JSON.stringify({ formatVersion: 9 }));
    await expect(requireLedger(ledger, captures)).rejects.toMatchObject({ code: 'conflict' });
  });

  it('is no new one when the ledger is there', async () => {
    await complete();
    await writeFile(ledger, 'SQLite format 3');
    await expect(requireLedger(ledger, captures)).resolves.toBeUndefined();
  });
});
