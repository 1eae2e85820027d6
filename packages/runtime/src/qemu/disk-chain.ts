import { constants } from 'node:fs';
import { chmod, chown, lstat, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError, type SnapshotArtifact } from '@agentenv/core';
import { createOverlay } from './qcow2.ts';
import { ENGINE_FD, fdPath, UPPER_IMAGE, UPPER_NODE } from './qemu-args.ts';
import type { Qmp } from './qmp.ts';
import { diskLayerName } from './snapshot-files.ts';

/** What an engine may read: it opens its layers anew by their descriptors. */
const LAYER_MODE = 0o644;

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
  /** Remembers what a capture found out about the layers, in order, so that the next one need not. */
  learn(layers: readonly SnapshotArtifact[]): void;
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

export function createDiskChain(options: DiskChainOptions): DiskChain {
  const { qmp, instance, layerDirectory, owner, bytes } = options;
  const layers: FrozenLayer[] = [...options.layers];
  let { node, image, made } = options.overlay ?? { node: overlayNode(0), image: overlayImage(0), made: 0 };
  let broken = false;

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

  return {
    base: options.base,
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
    learn(known) {
      for (const [index, artifact] of known.entries()) {
        const layer = layers[index];
        if (layer !== undefined) layers[index] = { ...layer, known: artifact };
      }
    },
  };
}
