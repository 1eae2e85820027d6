import { constants } from 'node:fs';
import { chmod, chown, lstat, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError, type SnapshotArtifact } from '@agentenv/core';
import { createOverlay } from './qcow2.ts';
import { DISK_NODE, diskLayerNode, ENGINE_FD, fdPath, UPPER_FILE_NODE, UPPER_IMAGE, UPPER_NODE } from './qemu-args.ts';
import type { Qmp } from './qmp.ts';
import { diskLayerName, linkOrCopy, linkOrKeep } from './snapshot-files.ts';

/** What an engine may read: it opens its layers anew by their descriptors. */
const LAYER_MODE = 0o644;
/** A base another than the one the engine was started on. */
const OWN_BASE = 'own-disk.raw';
const OWN_BASE_NODE = 'own-disk';

/** A layer nobody writes to any more. */
export interface FrozenLayer {
  readonly path: string;
  /** Once a capture put it on the platter and hashed it. */
  readonly known: SnapshotArtifact | undefined;
}

/** The writable disk of a running engine: a raw base, frozen layers, and the overlay its guest writes to. */
export interface DiskChain {
  /** The raw image below everything. */
  readonly base: string;
  /** Frozen layers, oldest first, in a directory of root's. */
  readonly layers: readonly FrozenLayer[];
  /** The overlay in use, in the engine's own directory. */
  readonly top: string;
  /**
   * Makes the overlay in use a frozen layer and gives the guest a new one. The guest is stopped and its disks are
   * flushed. Not to be interrupted: a chain whose state became unknown refuses from then on with `create_failed`.
   */
  freeze(): Promise<void>;
  /**
   * Puts frozen layers, and their base where it is another one, below the overlay of an engine that was started without
   * any and whose guest has not run. Rejects with `create_failed` when they cannot be put there; the engine is of no use
   * then.
   */
  attach(lower: DiskLower, signal?: AbortSignal): Promise<void>;
  /** Remembers what a capture found out about the layers, in order, so that the next one need not. */
  learn(layers: readonly SnapshotArtifact[]): void;
}

/** What lies below a writable disk. */
export interface DiskLower {
  readonly base: SnapshotArtifact;
  /** True when the base is the one the engine was started on. */
  readonly sameBase: boolean;
  readonly layers: readonly SnapshotArtifact[];
}

export interface DiskChainOptions {
  readonly qmp: Qmp;
  /** Directory of the engine's uid with its overlay. */
  readonly instance: string;
  /** Directory of root's, with the layers the engine was started on. */
  readonly layerDirectory: string;
  readonly base: string;
  readonly layers: readonly FrozenLayer[];
  readonly owner: number;
  /** Virtual size of the disk. */
  readonly bytes: number;
  /** The overlay in use; that of a fresh engine unless given. */
  readonly overlay?: Overlay;
}

/** The writable end of a chain. */
export interface Overlay {
  readonly node: string;
  /** File in the engine's own directory. */
  readonly image: string;
  /** Overlays made so far beside the first; the next gets a higher number. */
  readonly made: number;
}

export const overlayNode = (number: number): string => (number === 0 ? UPPER_NODE : `${UPPER_NODE}-${number}`);
export const overlayImage = (number: number): string => (number === 0 ? UPPER_IMAGE : `${UPPER_NODE}-${number}.qcow2`);

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

/** Takes a file out of the reach of its engine. */
export async function confiscate(path: string, target: string, owner: number): Promise<void> {
  await rename(path, target);
  await secureLayer(target, owner);
}

/** Gives frozen layers names of an engine's own, under which they outlive the snapshot they belong to. */
export async function linkDiskLayers(
  layers: readonly SnapshotArtifact[],
  directory: string,
): Promise<readonly SnapshotArtifact[]> {
  const linked: SnapshotArtifact[] = [];
  for (const [index, layer] of layers.entries()) {
    const path = join(directory, diskLayerName(index));
    await linkOrCopy(layer.path, path);
    linked.push({ ...layer, path });
  }
  return linked;
}

type BlockNode = Readonly<Record<string, unknown>>;

/** A read-only node on a file of the directory of layers. */
function fileNode(driver: string, node: string, name: string): BlockNode {
  const file = { driver: 'file', filename: fdPath(ENGINE_FD.layers, name), 'read-only': true };
  return { driver, 'node-name': node, 'read-only': true, file };
}

/** Everything that has to come below the overlay, each node within the one above it. */
function lowerNodes({ sameBase, layers }: DiskLower): BlockNode {
  const below = sameBase ? DISK_NODE : fileNode('raw', OWN_BASE_NODE, OWN_BASE);
  const stacked = layers.reduce<BlockNode | string>(
    (backing, _, index) => ({ ...fileNode('qcow2', diskLayerNode(index), diskLayerName(index)), backing }),
    below,
  );
  if (typeof stacked === 'string') throw new Error('unreachable: there is nothing to be put below');
  return stacked;
}

export function createDiskChain(options: DiskChainOptions): DiskChain {
  const { qmp, instance, layerDirectory, owner, bytes } = options;
  const layers: FrozenLayer[] = [...options.layers];
  let { node, image, made } = options.overlay ?? { node: overlayNode(0), image: overlayImage(0), made: 0 };
  let broken = false;
  let { base } = options;

  async function addOverlay(): Promise<{ readonly node: string; readonly image: string }> {
    made++;
    const added = { node: overlayNode(made), image: overlayImage(made) };
    await createOverlay(join(instance, added.image), bytes, owner);
    const cache = { 'no-flush': true };
    await qmp.execute('blockdev-add', {
      ...{ driver: 'qcow2', 'node-name': added.node, backing: null, discard: 'unmap', cache },
      file: { driver: 'file', filename: fdPath(ENGINE_FD.instance, added.image), discard: 'unmap', cache },
    });
    return added;
  }

  /** The engine opens it by its name in the directory, so it has to get one there. */
  async function linkBase({ path }: SnapshotArtifact): Promise<string> {
    const linked = join(layerDirectory, OWN_BASE);
    if ((await linkOrKeep(path, linked)) === linked) return linked;
    throw new PlatformError('create_failed', 'the disk of the capture lies on another file system');
  }

  return {
    get base() {
      return base;
    },
    get layers() {
      return layers;
    },
    get top() {
      return join(instance, image);
    },
    async freeze() {
      if (broken) throw new PlatformError('create_failed', 'the disk of the sandbox cannot be captured any more');
      const added = await addOverlay();
      broken = true;
      await qmp.execute('blockdev-snapshot', { node, overlay: added.node });
      const frozen = join(layerDirectory, diskLayerName(layers.length));
      await confiscate(join(instance, image), frozen, owner);
      layers.push({ path: frozen, known: undefined });
      node = added.node;
      image = added.image;
      broken = false;
    },
    async attach(lower, signal) {
      if (lower.sameBase && lower.layers.length === 0) return;
      broken = true;
      if (!lower.sameBase) base = await linkBase(lower.base);
      for (const layer of await linkDiskLayers(lower.layers, layerDirectory)) {
        layers.push({ path: layer.path, known: layer });
      }
      await qmp.execute('blockdev-add', lowerNodes(lower), {}, signal);
      const backing = lower.layers.length === 0 ? OWN_BASE_NODE : diskLayerNode(lower.layers.length - 1);
      const cache = { 'no-flush': true };
      const upper = {
        driver: 'qcow2',
        'node-name': UPPER_NODE,
        file: UPPER_FILE_NODE,
        backing,
        discard: 'unmap',
        cache,
      };
      await qmp.execute('blockdev-reopen', { options: [upper] }, {}, signal);
      broken = false;
    },
    learn(known) {
      for (const [index, artifact] of known.entries()) {
        const layer = layers[index];
        if (layer !== undefined) layers[index] = { ...layer, known: artifact };
      }
    },
  };
}
