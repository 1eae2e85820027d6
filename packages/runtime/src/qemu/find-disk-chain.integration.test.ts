import { chmod, chown, link, mkdir, mkdtemp, readdir, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createRealClock } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { startDiskEngine } from '../testing/disk-engine.ts';
import { createDiskChain } from './disk-chain.ts';
import { findDiskChain } from './find-disk-chain.ts';
import { createOverlay } from './qcow2.ts';
import { MAX_DISK_LAYERS } from './qemu-args.ts';
import type { Qmp } from './qmp.ts';

const OWNER = 62_500;
const DISK_BYTES = 16 * 1024 * 1024;
/** As QEMU 7.2 names an image that was put together by hand. */
const described = (file: string) =>
  `json:{"backing": null, "driver": "qcow2", "file": {"driver": "file", "filename": "/proc/self/fd/6/${file}"}}`;

describe('the disk chain of an engine that another server started', () => {
  let root: string;
  let instance: string;
  let layerDirectory: string;

  beforeEach(async () => {
    root = await mkdtemp(join(tmpdir(), 'aenv-chain-'));
    instance = join(root, 'instance');
    layerDirectory = join(root, 'layers');
    await Promise.all([mkdir(instance), mkdir(layerDirectory)]);
  });
  afterEach(() => rm(root, { recursive: true, force: true }));

  async function owned(path: string): Promise<void> {
    await writeFile(path, 'overlay', { mode: 0o600 });
    await chown(path, OWNER, OWNER);
  }

  /** An engine that says its disk is these overlays, the one in use first. */
  function find(...images: readonly string[]) {
    const chain = images.reduceRight<object>((below, file) => ({ filename: described(file), 'backing-image': below }), {
      filename: '/proc/self/fd/9',
    });
    const devices = [
      { device: '', qdev: 'vda', inserted: { image: { filename: '/proc/self/fd/8' } } },
      { device: '', qdev: 'drive0' },
      { device: '', qdev: 'vdb', inserted: { image: chain } },
    ];
    const execute: Qmp['execute'] = async (command) => (command === 'query-block' ? devices : {});
    return findDiskChain({ qmp: { execute }, instance, layerDirectory, owner: OWNER });
  }

  const layer = (name: string) => ({ path: join(layerDirectory, name), known: undefined });
  const frozen = (name: string) => writeFile(layer(name).path, 'frozen', { mode: 0o644 });

  test('one that was never captured has its first overlay alone', async () => {
    await owned(join(instance, 'upper.qcow2'));
    expect(await find('upper.qcow2')).toEqual({ layers: [], overlay: { image: 'upper.qcow2', made: 0 }, unused: [] });
  });

  test('frozen and merged layers are found in the order the engine reads them in', async () => {
    await owned(join(instance, 'upper-4.qcow2'));
    for (const name of ['disk-0.qcow2', 'merged-3.qcow2', 'upper-2.qcow2']) await frozen(name);
    expect(await find('upper-4.qcow2', 'upper-2.qcow2', 'merged-3.qcow2', 'disk-0.qcow2')).toEqual({
      layers: [layer('disk-0.qcow2'), layer('merged-3.qcow2'), layer('upper-2.qcow2')],
      overlay: { image: 'upper-4.qcow2', made: 4 },
      unused: [],
    });
  });

  test('what a merge left is not used, nor are its numbers again', async () => {
    await owned(join(instance, 'upper-1.qcow2'));
    for (const name of ['upper.qcow2', 'merged-7.qcow2', 'disk-0.qcow2']) await frozen(name);
    await writeFile(join(layerDirectory, 'own-disk.raw'), 'base');
    const { unused, ...found } = await find('upper-1.qcow2', 'upper.qcow2');
    expect(found).toEqual({ layers: [layer('upper.qcow2')], overlay: { image: 'upper-1.qcow2', made: 7 } });
    expect(unused.toSorted()).toEqual([layer('disk-0.qcow2').path, layer('merged-7.qcow2').path]);
  });

  test('an overlay that had just become a layer is taken from the engine', async () => {
    await frozen('upper.qcow2');
    for (const name of ['upper-1.qcow2', 'upper-2.qcow2']) await owned(join(instance, name));
    const { layers, overlay } = await find('upper-2.qcow2', 'upper-1.qcow2', 'upper.qcow2');
    expect(layers).toEqual([layer('upper.qcow2'), layer('upper-1.qcow2')]);
    expect(overlay.image).toBe('upper-2.qcow2');
    expect(await readdir(instance)).toEqual(['upper-2.qcow2']);
    expect(await stat(layer('upper-1.qcow2').path)).toMatchObject({ uid: 0, gid: 0, mode: 0o100644 });
  });

  test("a layer that was taken but still is its engine's becomes root's", async () => {
    await owned(layer('upper.qcow2').path);
    await owned(join(instance, 'upper-1.qcow2'));
    await find('upper-1.qcow2', 'upper.qcow2');
    expect(await stat(layer('upper.qcow2').path)).toMatchObject({ uid: 0, gid: 0, mode: 0o100644 });
  });

  test('an overlay that was made and not put to use is not used, nor is its number again', async () => {
    for (const name of ['upper.qcow2', 'upper-1.qcow2']) await owned(join(instance, name));
    expect(await find('upper.qcow2')).toEqual({
      layers: [],
      overlay: { image: 'upper.qcow2', made: 1 },
      unused: [join(instance, 'upper-1.qcow2')],
    });
  });

  test('files an engine made by itself are neither counted nor removed', async () => {
    const names = ['upper-9007199254740993.qcow2', 'upper-01.qcow2', 'upper-x.qcow2', 'other.qcow2', 'merged-5.raw'];
    for (const name of ['upper.qcow2', ...names]) await owned(join(instance, name));
    expect(await find('upper.qcow2')).toEqual({
      layers: [],
      overlay: { image: 'upper.qcow2', made: 0 },
      unused: [],
    });
  });

  test('of any number of them', { timeout: 60_000 }, async () => {
    const names = Array.from({ length: 1_100 }, (_, index) => `upper-${index + 1}.qcow2`);
    await Promise.all(['upper.qcow2', ...names].map((name) => owned(join(instance, name))));
    const { overlay, unused } = await find('upper.qcow2');
    expect(overlay.image).toBe('upper.qcow2');
    expect(unused.length).toBeLessThanOrEqual(1_024);
  });

  test('the most layers there can be, as an engine names them', async () => {
    const sockets = join(root, 'sockets');
    await mkdir(sockets);
    const [base, rootfs] = [join(root, 'base.raw'), join(root, 'rootfs')];
    await writeFile(base, Buffer.alloc(DISK_BYTES));
    await writeFile(rootfs, Buffer.alloc(4096));
    await createOverlay(join(instance, 'upper.qcow2'), DISK_BYTES, OWNER);
    await using engine = await startDiskEngine(createRealClock(), {
      ...{ sockets, instance, layerDirectory, rootfs, base, diskLayers: 0 },
    });
    const { qmp } = engine;
    // Numbers get longer with the life of an engine.
    const overlay = { image: 'upper.qcow2', made: 99_999_900 };
    const chain = { instance, layerDirectory, base, layers: [], owner: OWNER, bytes: DISK_BYTES };
    const disk = createDiskChain({ ...chain, qmp, overlay });
    using _held = await disk.hold();
    while (disk.layers.length < MAX_DISK_LAYERS) await disk.freeze();
    const found = await findDiskChain({ qmp, instance, layerDirectory, owner: OWNER });
    expect(found.layers.map(({ path }) => path)).toEqual(disk.layers.map(({ path }) => path));
    expect(join(instance, found.overlay.image)).toBe(disk.top);
  });

  test('layers shared with captures stay as they are', async () => {
    await writeFile(layer('disk-0.qcow2').path, 'frozen');
    await chmod(layer('disk-0.qcow2').path, 0o644);
    await link(layer('disk-0.qcow2').path, join(root, 'captured'));
    await owned(join(instance, 'upper.qcow2'));
    expect((await find('upper.qcow2', 'disk-0.qcow2')).layers).toEqual([layer('disk-0.qcow2')]);
  });

  test('a disk of which a layer is missing is refused', async () => {
    await owned(join(instance, 'upper-1.qcow2'));
    await expect(find('upper-1.qcow2', 'upper.qcow2')).rejects.toMatchObject({ code: 'sandbox_unavailable' });
  });

  test('a file that was put in the place of an overlay is refused', async () => {
    await owned(join(instance, 'upper-1.qcow2'));
    await symlink('/etc/shadow', join(instance, 'upper.qcow2'));
    await expect(find('upper-1.qcow2', 'upper.qcow2')).rejects.toMatchObject({ code: 'create_failed' });
  });

  test('an engine without that disk is refused', async () => {
    await expect(find()).rejects.toMatchObject({ code: 'sandbox_unavailable' });
  });
});
