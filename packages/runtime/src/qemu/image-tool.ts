import { open } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { PlatformError } from '@agentenv/core';
import type { Exec } from '../exec.ts';
import type { Extent } from './pagemap.ts';
import { isFields } from './qmp-events.ts';
import { PAGE } from './sparse-digest.ts';

const DEADLINE_MS = 120_000;
/** The map of a badly fragmented image; each extent takes about 130 bytes. */
const MAX_MAP = 64 * 1024 * 1024;

/** Data extents of `qemu-img map --output=json`, widened to whole pages and merged where they touch. */
export function extentsOfMap(map: unknown): readonly Extent[] {
  const extents: Extent[] = [];
  for (const entry of Array.isArray(map) ? map : []) {
    if (!isFields(entry) || entry.data !== true || entry.zero === true) continue;
    const { start, length } = entry;
    if (typeof start !== 'number' || typeof length !== 'number') continue;
    const from = Math.floor(start / PAGE) * PAGE;
    const to = Math.ceil((start + length) / PAGE) * PAGE;
    const last = extents.at(-1);
    if (last !== undefined && from <= last.offset + last.length) {
      extents[extents.length - 1] = { offset: last.offset, length: to - last.offset };
    } else {
      extents.push({ offset: from, length: to - from });
    }
  }
  return extents;
}

/** Where a sparse raw file holds data, ascending, in whole pages. */
export async function dataExtents(path: string, exec: Exec, signal?: AbortSignal): Promise<readonly Extent[]> {
  const argv = ['qemu-img', 'map', '-f', 'raw', '--output=json', path] as const;
  try {
    return extentsOfMap(JSON.parse(await exec({ argv, deadlineMs: DEADLINE_MS, maxOutput: MAX_MAP }, signal)));
  } catch (caught) {
    throw PlatformError.fromUnknown(caught, `the extents of ${path} could not be read`);
  }
}

export interface FlattenRequest {
  readonly launcher: string;
  /** The engine's uid and gid. Its image is read with no more rights than it has: a header may name any file. */
  readonly owner: number;
  readonly upper: string;
  /** Frozen layers below it, oldest first, in one directory. */
  readonly layers: readonly string[];
  readonly lower: string;
  readonly target: string;
  /** Virtual size of the disk. */
  readonly bytes: number;
}

const LAYERS_FD = 6;

/** The disk as `qemu-img` names it: layers are given explicitly, whatever their headers say. */
function diskSource(layers: readonly string[]): object {
  const file = (path: string) => ({ driver: 'file', filename: `/proc/self/fd/${path}` });
  let below: object = { driver: 'raw', file: file('4') };
  for (const layer of layers) {
    below = { driver: 'qcow2', file: file(`${LAYERS_FD}/${basename(layer)}`), backing: below };
  }
  return { driver: 'qcow2', file: file('3'), backing: below };
}

/** Writes what a stopped engine's disk shows, overlay upon layers upon lower image, into a new sparse raw file. */
export async function flattenDisk(request: FlattenRequest, exec: Exec, signal?: AbortSignal): Promise<void> {
  const { launcher, owner, upper, layers, lower, target, bytes } = request;
  const file = await open(target, 'wx', 0o600);
  try {
    await file.truncate(bytes);
    await file.chown(owner, owner);
    const source = `json:${JSON.stringify(diskSource(layers))}`;
    const confined = [launcher, '--uid', `${owner}`, '--gid', `${owner}`] as const;
    const files = ['--file', `3=${upper}`, '--file', `4=${lower}`, '--file', `5=${target}`];
    const [layer] = layers;
    if (layer !== undefined) files.push('--dir', `${LAYERS_FD}=${dirname(layer)}`);
    // The engine keeps its locks; it is stopped and has flushed, so reading beside it is consistent.
    const convert = ['qemu-img', 'convert', '--force-share', '-O', 'raw', '-S', '4k', '-n', '--target-is-zero'];
    await exec(
      { argv: [...confined, ...files, '--', ...convert, source, '/proc/self/fd/5'], deadlineMs: DEADLINE_MS },
      signal,
    );
    await file.chown(0, 0);
    await file.chmod(0o644);
  } finally {
    await file.close();
  }
}

/** Copies a sparse file, sharing its blocks where the file system can. */
export async function copySparse(source: string, target: string, exec: Exec, signal?: AbortSignal): Promise<void> {
  await exec({ argv: ['cp', '--reflink=auto', '--sparse=always', source, target], deadlineMs: DEADLINE_MS }, signal);
}
