import { open, readdir, rm, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import type { StoredSnapshot } from '@agentenv/runtime';
import type { HostArtifacts } from '../../packages/runtime/src/artifacts.ts';
import type { Exec } from '../../packages/runtime/src/exec.ts';
import { dataExtents, flattenDisk } from '../../packages/runtime/src/qemu/image-tool.ts';
import { decodeLayerIndex } from '../../packages/runtime/src/qemu/memory-layer.ts';
import { snapshotFiles } from '../../packages/runtime/src/qemu/snapshot-files.ts';

const PAGE = 4096;
const SECTOR = 512;
const NOBODY = 65_534;
const NOTHING = Buffer.alloc(PAGE);

/** Pages of a memory or a disk by their number; those that are not here are as the base has them. */
type Pages = ReadonlyMap<number, Buffer>;

/** Bytes the file system holds for a capture by the name of the file, without files already `known`, which it adds to. */
export async function storedBytes(directory: string, known: Set<number>): Promise<ReadonlyMap<string, number>> {
  const files = new Map<string, number>();
  for (const name of await readdir(directory)) {
    const { ino, blocks } = await stat(join(directory, name));
    if (!known.has(ino)) files.set(name, blocks * SECTOR);
    known.add(ino);
  }
  return files;
}

async function readPage(path: string, page: number): Promise<Buffer> {
  await using file = await open(path, 'r');
  const bytes = Buffer.alloc(PAGE);
  await file.read(bytes, 0, PAGE, page * PAGE);
  return bytes;
}

/** What the memory of a capture shows where it is not its base, read from the files themselves. */
async function memoryOf(snapshot: StoredSnapshot): Promise<Pages> {
  const { memory, memoryLayers } = snapshotFiles(snapshot);
  const pages = new Map<number, Buffer>();
  for (const { path } of memoryLayers) {
    await using file = await open(path, 'r');
    const bytes = await file.readFile();
    const { extents, dataOffset } = decodeLayerIndex(bytes, memory?.virtualSize ?? 0, bytes.length);
    let at = dataOffset;
    for (const { offset, length } of extents) {
      for (let done = 0; done < length; done += PAGE, at += PAGE) {
        pages.set((offset + done) / PAGE, bytes.subarray(at, at + PAGE));
      }
    }
  }
  return pages;
}

/** Everything on the disk of a capture. */
async function diskOf(snapshot: StoredSnapshot, { artifacts, exec, scratch }: Tools): Promise<Pages> {
  const { disk, diskLayers } = snapshotFiles(snapshot);
  const upper = diskLayers.at(-1)?.path;
  let flat = disk.path;
  if (upper !== undefined) {
    flat = join(scratch, 'disk');
    const layers = diskLayers.slice(0, -1).map(({ path }) => path);
    const bytes = disk.virtualSize ?? 0;
    const launcher = artifacts.launcher.path;
    await flattenDisk({ launcher, owner: NOBODY, upper, layers, lower: disk.path, target: flat, bytes }, exec);
  }
  const pages = new Map<number, Buffer>();
  await using file = await open(flat, 'r');
  for (const { offset, length } of await dataExtents(flat, exec)) {
    const bytes = Buffer.alloc(length);
    await file.read(bytes, 0, length, offset);
    for (let at = 0; at < length; at += PAGE) pages.set((offset + at) / PAGE, bytes.subarray(at, at + PAGE));
  }
  if (flat !== disk.path) await rm(flat);
  return pages;
}

/** How many pages differ, where a page that one of them lacks is what `below` says. */
async function differing(now: Pages, former: Pages, below: (page: number) => Promise<Buffer>): Promise<number> {
  let count = 0;
  for (const page of new Set([...now.keys(), ...former.keys()])) {
    const [left, right] = [now.get(page) ?? (await below(page)), former.get(page) ?? (await below(page))];
    if (!left.equals(right)) count++;
  }
  return count;
}

export interface Tools {
  readonly artifacts: HostArtifacts;
  readonly exec: Exec;
  /** An empty directory. */
  readonly scratch: string;
}

/** Bytes of memory and disk that changed between two captures of one sandbox upon one base of memory, in pages of 4 KiB. */
export interface Changed {
  readonly memory: number;
  readonly disk: number;
}

/** Counts in each of the captures what differs from the one before it; of the first from `template`. */
export async function changedBytes(
  template: StoredSnapshot,
  captures: readonly StoredSnapshot[],
  tools: Tools,
): Promise<readonly Changed[]> {
  const base = resolve(template.directory, template.manifest.memory?.path ?? '');
  const changes: Changed[] = [];
  let former = { memory: await memoryOf(template), disk: await diskOf(template, tools) };
  for (const capture of captures) {
    const now = { memory: await memoryOf(capture), disk: await diskOf(capture, tools) };
    changes.push({
      memory: PAGE * (await differing(now.memory, former.memory, (page) => readPage(base, page))),
      disk: PAGE * (await differing(now.disk, former.disk, async () => NOTHING)),
    });
    former = now;
  }
  return changes;
}
