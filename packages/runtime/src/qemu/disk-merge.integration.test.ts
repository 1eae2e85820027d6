import { execFile } from 'node:child_process';
import { copyFile, mkdtemp, open, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { createSeededRandom } from '@agentenv/core/testing';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { mergeDiskLayers } from './disk-merge.ts';
import { createOverlay } from './qcow2.ts';

const run = promisify(execFile);
const MIB = 1024 * 1024;
const CLUSTER = 65_536;
const SIZE = 1_100 * MIB;

describe('merged layers of a disk', () => {
  let directory: string;
  let base: string;

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'aenv-merge-'));
    base = join(directory, 'base.raw');
    await writeFile(base, Buffer.alloc(4 * MIB, 0x5a));
    await truncate(base, SIZE);
  });
  afterEach(() => rm(directory, { recursive: true, force: true }));

  /** The disk these layers, oldest first, show upon the base. */
  function disk(layers: readonly string[]): string {
    let below: object = { driver: 'raw', file: { driver: 'file', filename: base } };
    for (const filename of layers) below = { driver: 'qcow2', file: { driver: 'file', filename }, backing: below };
    return `json:${JSON.stringify(below)}`;
  }

  /** A layer upon others that is written to as an engine does. */
  async function layerUpon(layers: readonly string[], commands: readonly string[]): Promise<string> {
    const path = join(directory, `layer-${layers.length}.qcow2`);
    await createOverlay(path, SIZE, 0);
    const arguments_ = commands.flatMap((command) => ['-c', command]);
    await run('qemu-io', ['-d', 'unmap', ...arguments_, disk([...layers, path])]);
    return path;
  }

  const compare = (left: readonly string[], right: readonly string[]) =>
    run('qemu-img', ['compare', '-U', disk(left), disk(right)]);

  test('show the same disk in any part of a chain, in one sound image', async () => {
    const rng = createSeededRandom(11);
    const place = () => [0, 1, 511, 512, 1_000][rng.below(5)] ?? 0;
    const layers: string[] = [];
    for (let index = 0; index < 5; index++) {
      const commands = Array.from({ length: 30 }, () => {
        const at = place() * MIB + rng.below(40) * 4096 + rng.below(6) * CLUSTER;
        const length = 4096 * (1 + rng.below(40));
        return (
          [`write -P ${1 + rng.below(200)}`, 'write -z', 'discard', `write -P ${index + 1}`][rng.below(4)] +
          ` ${at} ${length}`
        );
      });
      layers.push(await layerUpon(layers, commands));
    }
    const pairs: readonly (readonly [number, number])[] = [
      [0, 5],
      [0, 2],
      [2, 5],
      [1, 4],
      [4, 5],
    ];
    for (const [from, to] of pairs) {
      const target = join(directory, `merged-${from}-${to}.qcow2`);
      mergeDiskLayers({ kind: 'merge-disk-layers', sources: layers.slice(from, to), target, size: SIZE });
      await run('qemu-img', ['check', '-q', target]);
      await compare(layers, [...layers.slice(0, from), target, ...layers.slice(to)]);
      const { stdout } = await run('qemu-img', ['info', '--output=json', target]);
      expect(JSON.parse(stdout)).not.toHaveProperty('backing-filename');
      const sizes = await Promise.all(layers.slice(from, to).map(async (path) => (await stat(path)).size));
      expect((await stat(target)).size).toBeLessThanOrEqual(sizes.reduce((sum, bytes) => sum + bytes, 0));
    }
  });

  test('a damaged layer is refused, whatever is damaged, and never read beyond its file', async () => {
    const layer = await layerUpon([], ['write -P 9 0 1M']);
    const damaged = join(directory, 'damaged.qcow2');
    const entry = (value: bigint) => {
      const bytes = Buffer.alloc(8);
      bytes.writeBigUInt64BE(value);
      return bytes;
    };
    const l1 = 3 * CLUSTER;
    for (const [reason, spoil] of [
      ['unexpected end of file', (path: string) => truncate(path, 50)],
      ['unexpected end of file', (path: string) => truncate(path, l1)],
      ['no disk layer', (path: string) => overwrite(path, 0, Buffer.from('QFJ'))],
      ['not used', (path: string) => overwrite(path, 72, entry(4n))],
      ['not used', (path: string) => overwrite(path, 32, Buffer.alloc(4, 1))],
      ['instead of', (path: string) => overwrite(path, 24, entry(BigInt(SIZE + 512)))],
      ['tables', (path: string) => overwrite(path, 40, entry(2n ** 60n))],
      ['tables', (path: string) => overwrite(path, l1, entry(2n ** 63n + 2n ** 40n))],
      ['tables', (path: string) => overwrite(path, l1, entry(2n ** 63n + 512n))],
      ['tables', (path: string) => overwrite(path, l1, entry(2n ** 62n + BigInt(l1)))],
    ] as const) {
      await copyFile(layer, damaged);
      await spoil(damaged);
      const target = join(directory, 'merged.qcow2');
      const merge = () => mergeDiskLayers({ kind: 'merge-disk-layers', sources: [damaged], target, size: SIZE });
      expect(merge).toThrow(reason);
      await rm(target, { force: true });
    }
  });
});

async function overwrite(path: string, position: number, bytes: Buffer): Promise<void> {
  await using file = await open(path, 'r+');
  await file.write(bytes, 0, bytes.length, position);
}
