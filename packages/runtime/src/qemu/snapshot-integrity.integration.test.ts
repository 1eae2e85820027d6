import { appendFile, link, mkdir, mkdtemp, open, rm, truncate, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { SILENT_LOG, type SnapshotManifest } from '@agentenv/core';
import { createRealClock } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { StoredSnapshot } from '../backend.ts';
import { createExec } from '../exec.ts';
import { createMemoryThread, type MemoryThread } from './memory-thread.ts';
import { createSnapshotIntegrity, digestArtifact, type SnapshotIntegrity } from './snapshot-integrity.ts';

const MIB = 1024 * 1024;

describe('trust in captured files', () => {
  const exec = createExec({ clock: createRealClock() });
  let directory: string;
  let memory: MemoryThread;
  let snapshot: StoredSnapshot;
  let integrity: SnapshotIntegrity;

  /** A sparse file with a page of data at each offset. */
  async function sparse(name: string, size: number, offsets: readonly number[]): Promise<void> {
    const path = join(directory, name);
    await writeFile(path, '');
    await truncate(path, size);
    for (const offset of offsets) await overwrite(name, offset, 0xaa, 4096);
  }

  async function overwrite(name: string, offset: number, fill: number, length = 1): Promise<void> {
    const file = await open(join(directory, name), 'r+');
    try {
      await file.write(Buffer.alloc(length, fill), 0, length, offset);
      await file.sync();
    } finally {
      await file.close();
    }
  }

  async function artifact(path: string, virtualSize?: number) {
    const { sha256, bytes } = await digestArtifact(join(directory, path), virtualSize, { memory, exec });
    return { path, size: bytes, sha256, ...(virtualSize === undefined ? {} : { virtualSize }) };
  }

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'aenv-integrity-'));
    memory = createMemoryThread();
    await sparse('memory', 64 * MIB, [0, 8 * MIB, 64 * MIB - 4096]);
    await sparse('disk', 1024 * MIB, [4096]);
    await writeFile(join(directory, 'state'), 'devices');
    const manifest: SnapshotManifest = {
      formatVersion: 1,
      backend: 'qemu',
      fingerprint: {},
      resources: { vcpus: 1, memoryMB: 64, diskSizeMB: 1024 },
      vmState: await artifact('state'),
      memory: await artifact('memory', 64 * MIB),
      rootfs: { path: '/nowhere', size: 0 },
      disk: await artifact('disk', 1024 * MIB),
      channelKey: '',
      createdAt: '2026-01-01T00:00:00.000Z',
    };
    snapshot = { directory, manifest };
    integrity = createSnapshotIntegrity({ memory, exec, log: SILENT_LOG });
  });
  afterEach(async () => {
    await memory[Symbol.asyncDispose]();
    await rm(directory, { recursive: true, force: true });
  });

  test('files as the manifest says are accepted, also by callers at the same time', async () => {
    await Promise.all([integrity.verify(snapshot), integrity.verify(snapshot)]);
    await integrity.verify(snapshot);
    expect(await integrity.sweep()).toEqual([]);
  });

  test('memory that is damaged does not stand in the way of a boot, and a disk that is does', async () => {
    await overwrite('memory', 8 * MIB + 17, 1);
    await integrity.verifyDisk(snapshot);
    await expect(integrity.verify(snapshot)).rejects.toThrow('the snapshot is damaged: memory');
    await integrity.verifyDisk(snapshot);
    await overwrite('disk', 4096, 1);
    await expect(integrity.verifyDisk(snapshot)).rejects.toThrow('the snapshot is damaged: disk');
  });

  test('counts only what the file holds', () => {
    expect(snapshot.manifest.memory?.size).toBe(3 * 4096);
  });

  test.each<[string, () => Promise<void>]>([
    ['one byte of the memory', () => overwrite('memory', 8 * MIB + 17, 1)],
    ['a byte in a hole of the memory', () => overwrite('memory', 32 * MIB, 1)],
    ['the size of the memory', () => truncate(join(directory, 'memory'), 32 * MIB)],
    ['the devices', () => appendFile(join(directory, 'state'), '!')],
    ['the disk', () => overwrite('disk', 512 * MIB, 1)],
    ['a file that is gone', () => rm(join(directory, 'disk'))],
  ])('a change of %s before the first use is refused, and stays refused', async (_what, change) => {
    await change();
    await expect(integrity.verify(snapshot)).rejects.toMatchObject({ code: 'create_failed' });
    await expect(integrity.verify(snapshot)).rejects.toThrow('damaged');
  });

  test('a change while it is in use is found by the next use and by the sweep', async () => {
    await integrity.verify(snapshot);
    await overwrite('memory', 0, 1);
    expect(await integrity.sweep()).toEqual([directory]);
    await expect(integrity.verify(snapshot)).rejects.toThrow('the snapshot is damaged: memory');

    const second = createSnapshotIntegrity({ memory, exec, log: SILENT_LOG });
    await second.trust(snapshot);
    await overwrite('state', 0, 1);
    await expect(second.verify(snapshot)).rejects.toMatchObject({ message: 'the snapshot is damaged: state' });
  });

  test('a new file with the contents, and perhaps the inode, of one that is gone is not a damaged one', async () => {
    await integrity.trust(snapshot);
    await utimes(join(directory, 'state'), 1, 1);
    await integrity.verify(snapshot);
    expect(await integrity.sweep()).toEqual([]);
  });

  test('layers of several snapshots are read once, and one that changed retires all that have it', async () => {
    await writeFile(join(directory, 'lower'), 'pages');
    await writeFile(join(directory, 'upper'), 'other pages');
    const memoryLayers = [await artifact('lower'), await artifact('upper')];
    const first = { directory, manifest: { ...snapshot.manifest, memoryLayers } };
    const second = { directory: join(directory, 'second'), manifest: first.manifest };
    await mkdir(second.directory);
    for (const name of ['state', 'memory', 'disk', 'lower', 'upper']) {
      await link(join(directory, name), join(second.directory, name));
    }
    const read: string[] = [];
    const counted: MemoryThread = {
      async run(job) {
        if (job.kind === 'hash-file') read.push(basename(job.path));
        return memory.run(job);
      },
      async [Symbol.asyncDispose]() {},
    };
    const counting = createSnapshotIntegrity({ memory: counted, exec, log: SILENT_LOG });
    await counting.verify(first);
    await counting.verify(second);
    expect(read.toSorted()).toEqual(['lower', 'state', 'upper']);
    await overwrite('lower', 1, 1);
    await expect(counting.verify(second)).rejects.toThrow('the snapshot is damaged: lower');
    expect(await counting.sweep()).toEqual([directory]);
  });

  test('a zero written into a hole changes nothing for a new server', async () => {
    await overwrite('memory', 32 * MIB, 0, 4096);
    await integrity.verify(snapshot);
  });
});

describe('the memory thread', () => {
  test('a failed job fails alone, and a closed thread takes none', async () => {
    const thread = createMemoryThread();
    const missing = { kind: 'digest', path: '/nowhere/file', size: 0, extents: [] } as const;
    await expect(thread.run(missing)).rejects.toMatchObject({ code: 'internal' });
    await expect(thread.run({ ...missing, path: '/proc/self/stat' })).resolves.toMatchObject({ bytes: 0 });
    await thread[Symbol.asyncDispose]();
    await expect(thread.run(missing)).rejects.toMatchObject({ code: 'unavailable' });
  });
});
