import { createHash } from 'node:crypto';
import type { CaptureId } from '@agentenv/core';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { CaptureStore } from '../capture-store.ts';

/** One place captures are kept in, for the length of one test. */
export interface CapturePlace extends AsyncDisposable {
  /** Opens it; again as a later server would. */
  open(): Promise<CaptureStore>;
  /** Writes a file as a backend does. */
  write(directory: string, name: string, text: string): Promise<void>;
}

const FIRST = '019b76da-a800-7000-8000-000000000001' as CaptureId;
const SECOND = '019b76da-a800-7000-8000-000000000002' as CaptureId;
const MANIFEST = {
  formatVersion: 1,
  backend: 'fake',
  fingerprint: { engine: 'fake-1' },
  channelKey: '00'.repeat(16),
  layers: ['of one backend alone'],
};

/** What every store of captures has to do, wherever it keeps them. */
export function describeCaptureStoreContract(name: string, createPlace: () => Promise<CapturePlace>): void {
  describe(`${name} keeps the contract of capture stores`, () => {
    let place: CapturePlace;
    let store: CaptureStore;
    beforeEach(async () => {
      place = await createPlace();
      store = await place.open();
    });
    afterEach(async () => {
      await place[Symbol.asyncDispose]();
    });

    test('what was captured is there for a later server, with everything its backend wrote', async () => {
      const directory = await store.allocate(FIRST);
      await place.write(directory, 'manifest.json', JSON.stringify(MANIFEST));
      const later = await place.open();
      const digest = createHash('sha256').update(JSON.stringify(MANIFEST)).digest('hex');
      expect(await later.open(FIRST)).toEqual({ directory, manifest: MANIFEST, digest });
      expect(await later.list()).toEqual(new Set([FIRST]));
    });

    test('an id has one directory: it is not given out twice', async () => {
      await store.allocate(FIRST);
      await expect(store.allocate(FIRST)).rejects.toMatchObject({ code: 'internal' });
    });

    test('one that is not complete is listed but cannot be opened', async () => {
      await store.allocate(FIRST);
      expect(await store.list()).toEqual(new Set([FIRST]));
      await expect(store.open(FIRST)).rejects.toMatchObject({ code: 'internal' });
      await expect(store.open(SECOND)).rejects.toMatchObject({ code: 'internal' });
    });

    test('removal takes exactly that one, may be repeated, and frees its name', async () => {
      const directory = await store.allocate(FIRST);
      await place.write(directory, 'manifest.json', JSON.stringify(MANIFEST));
      await store.allocate(SECOND);
      await store.remove(FIRST);
      await store.remove(FIRST);
      expect(await store.list()).toEqual(new Set([SECOND]));
      await store.allocate(FIRST);
      await expect(store.open(FIRST)).rejects.toMatchObject({ code: 'internal' });
    });

    test.each([
      ['manifest.json', { ...MANIFEST, backend: undefined }],
      ['manifest.json', { formatVersion: 1 }],
      ['firecracker-manifest.json', { formatVersion: 1, memory: { path: 'memory', size: 1 } }],
    ])('%s without a backend (%j) is one of the first, which had only one', async (file, manifest) => {
      const directory = await store.allocate(FIRST);
      await place.write(directory, file, JSON.stringify(manifest));
      expect((await store.open(FIRST)).manifest).toMatchObject({ backend: 'firecracker' });
    });

    test('the first name of manifests does not stand in the way of the present one', async () => {
      const directory = await store.allocate(FIRST);
      await place.write(directory, 'firecracker-manifest.json', JSON.stringify({ formatVersion: 1 }));
      await place.write(directory, 'manifest.json', JSON.stringify(MANIFEST));
      expect((await store.open(FIRST)).manifest.backend).toBe('fake');
    });

    test.each([
      ['{"formatVersion": 1', 'it is not JSON'],
      ['[]', 'it is not an object'],
      [JSON.stringify({ ...MANIFEST, formatVersion: 2 }), 'format 2, this version reads 1'],
      [JSON.stringify({ ...MANIFEST, backend: 7 }), 'backend is not text'],
      [JSON.stringify({ ...MANIFEST, fingerprint: { engine: 1 } }), 'fingerprint is not an object of texts'],
      [JSON.stringify({ ...MANIFEST, channelKey: undefined }), 'channelKey is not text'],
    ])('the manifest %s is refused: %s', async (text, why) => {
      await place.write(await store.allocate(FIRST), 'manifest.json', text);
      await expect(store.open(FIRST)).rejects.toMatchObject({
        code: 'internal',
        message: expect.stringContaining(why),
      });
    });
  });
}
