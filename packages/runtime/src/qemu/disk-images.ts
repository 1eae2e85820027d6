import { constants } from 'node:fs';
import { chmod, chown, lstat, rename } from 'node:fs/promises';
import { basename } from 'node:path';
import { PlatformError } from '@agentenv/core';
import { fileNodeOf, nodeOf, UPPER_FILE_NODE, UPPER_IMAGE, UPPER_NODE } from './qemu-args.ts';
import type { Qmp } from './qmp.ts';
import { isFields } from './qmp-events.ts';

/** What an engine may read: it opens its layers anew by their descriptors. */
export const LAYER_MODE = 0o644;

/**
 * Images of a writable disk keep their names for life, wherever they lie: the engine names them in its answers and calls
 * its nodes after them.
 */
export const overlayImage = (number: number): string => (number === 0 ? UPPER_IMAGE : `${UPPER_NODE}-${number}.qcow2`);
export const mergedImage = (number: number): string => `merged-${number}.qcow2`;

/** An engine could give its files any number; a counter goes on from these. */
const NUMBERED = /^(?:upper|merged)-([1-9]\d{0,8})\.qcow2$/;

/** True for the name of an overlay. */
export function isOverlay(image: string): boolean {
  return image === UPPER_IMAGE || (image.startsWith(`${UPPER_NODE}-`) && NUMBERED.test(image));
}

/** The number in an image's name; 0 for images without one of this server's. */
export function imageNumber(image: string): number {
  return Number(NUMBERED.exec(image)?.[1] ?? 0);
}

/** An image that was put together by hand has its description for a name (qapi `ImageInfo`). */
function fileOf(filename: unknown): string {
  if (typeof filename !== 'string') return '';
  if (!filename.startsWith('json:')) return filename;
  const described: unknown = JSON.parse(filename.slice('json:'.length));
  return isFields(described) && isFields(described.file) ? String(described.file.filename) : '';
}

/** Images of the writable disk as the engine reads them now, without the raw one at the bottom, the one in use first. */
export async function imagesInUse(
  qmp: Pick<Qmp, 'execute'>,
  signal?: AbortSignal,
): Promise<readonly [string, ...string[]]> {
  const devices = await qmp.execute('query-block', {}, {}, signal);
  for (const device of Array.isArray(devices) ? devices : []) {
    const inserted = isFields(device) && isFields(device.inserted) ? device.inserted : {};
    const images: string[] = [];
    for (let at: unknown = inserted.image; isFields(at); at = at['backing-image']) {
      const image = basename(fileOf(at.filename));
      if (image.endsWith('.qcow2')) images.push(image);
    }
    const [top, ...below] = images;
    if (top !== undefined) return [top, ...below];
  }
  throw new PlatformError('sandbox_unavailable', 'the engine does not know its writable disk');
}

/** Makes a file that was taken from its engine root's; twice is as good as once. One that was swapped is refused. */
export async function secureLayer(path: string, owner: number): Promise<void> {
  const { mode, uid, nlink } = await lstat(path);
  if (uid === 0 && (mode & 0o777) === LAYER_MODE) return;
  if ((mode & constants.S_IFMT) !== constants.S_IFREG || ![0, owner].includes(uid) || nlink !== 1) {
    throw new PlatformError('create_failed', 'the disk of the sandbox is not what it was');
  }
  await chown(path, 0, 0);
  await chmod(path, LAYER_MODE);
}

/** True for anything of that name. */
export async function exists(path: string): Promise<boolean> {
  return lstat(path).then(
    () => true,
    () => false,
  );
}

/** Takes a file out of the reach of its engine; twice is as good as once, as nobody else writes where it goes. */
export async function confiscate(path: string, target: string, owner: number): Promise<void> {
  if (!(await exists(target))) await rename(path, target);
  await secureLayer(target, owner);
}

/** What the engine refused to close, and why. */
interface StillOpen {
  readonly paths: readonly string[];
  readonly failure: unknown;
}

/**
 * Has the engine close images nothing but each other lies upon any more, best the newest first; twice is as good as once.
 * Rejects when it does not answer.
 */
export async function closeImages(
  qmp: Pick<Qmp, 'execute'>,
  paths: readonly string[],
  signal?: AbortSignal,
): Promise<StillOpen> {
  let open: StillOpen = { paths, failure: undefined };
  if (paths.length === 0) return open;
  const answer = await qmp.execute('query-named-block-nodes', { flat: true }, {}, signal);
  const named = (Array.isArray(answer) ? answer : []).map((node: unknown) => isFields(node) && node['node-name']);
  for (;;) {
    const before = open.paths;
    const refused: string[] = [];
    let failure: unknown;
    for (const path of before) {
      try {
        await closeNode(qmp, nodeOf(path), named, signal);
      } catch (caught) {
        if (PlatformError.fromUnknown(caught).code !== 'create_failed') throw caught;
        // Another one of them may lie upon it.
        refused.push(path);
        failure = caught;
      }
    }
    open = { paths: refused, failure };
    if (refused.length === 0 || refused.length === before.length) return open;
  }
}

async function closeNode(
  qmp: Pick<Qmp, 'execute'>,
  node: string,
  named: readonly unknown[],
  signal: AbortSignal | undefined,
): Promise<void> {
  // The files of all others go with their images.
  const nodes = node === UPPER_NODE ? [node, UPPER_FILE_NODE] : [node];
  for (const name of nodes.filter((candidate) => named.includes(candidate))) {
    await qmp.execute('blockdev-del', { 'node-name': name }, {}, signal);
  }
}

/** The description of an image's node: below it lies the node `backing`. */
export function imageNode(
  image: string,
  filename: string,
  backing: string | null,
  options: Readonly<Record<string, unknown>>,
): Readonly<Record<string, unknown>> {
  const node = nodeOf(image);
  const file = { driver: 'file', 'node-name': fileNodeOf(node), filename, ...options };
  return { driver: 'qcow2', 'node-name': node, file, backing, ...options };
}
