import { constants } from 'node:fs';
import { chmod, chown, lstat, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError, type SnapshotArtifact } from '@agentenv/core';
import { createOverlay } from './qcow2.ts';
import { DISK_NODE, diskLayerNode, ENGINE_FD, fdPath, UPPER_FILE_NODE, UPPER_IMAGE, UPPER_NODE } from './qemu-args.ts';
import type { Qmp } from './qmp.ts';
import { isFields } from './qmp-events.ts';
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
  /** Brings a freeze that failed to its end, as far as it came; first of all in every capture. */
  settle(): Promise<void>;
  /** Makes the overlay in use a frozen layer and gives the guest a new one. The guest is stopped and its disks are flushed. */
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

async function exists(path: string): Promise<boolean> {
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

/** Nodes the guest's devices use, of the answer to `query-block`. */
function nodesInUse(answer: unknown): readonly unknown[] {
  return (Array.isArray(answer) ? answer : []).flatMap((device: unknown) =>
    isFields(device) && isFields(device.inserted) ? [device.inserted['node-name']] : [],
  );
}

export function createDiskChain(options: DiskChainOptions): DiskChain {
  const { qmp, instance, layerDirectory, owner, bytes } = options;
  const layers: FrozenLayer[] = [...options.layers];
  let { node, image, made } = options.overlay ?? { node: overlayNode(0), image: overlayImage(0), made: 0 };
  let { base } = options;
  /** An overlay that was to be put on top; whether the engine did is not known. */
  let proposed: { readonly node: string; readonly image: string } | undefined;
  /** The overlay the engine no longer writes to, which has not come into our hands yet. */
  let surrendered: { readonly image: string; readonly path: string } | undefined;

  async function addOverlay(added: { readonly node: string; readonly image: string }): Promise<void> {
    const cache = { 'no-flush': true };
    try {
      await createOverlay(join(instance, added.image), bytes, owner);
      await qmp.execute('blockdev-add', {
        ...{ driver: 'qcow2', 'node-name': added.node, backing: null, discard: 'unmap', cache },
        file: { driver: 'file', filename: fdPath(ENGINE_FD.instance, added.image), discard: 'unmap', cache },
      });
    } catch (caught) {
      await rm(join(instance, added.image), { force: true });
      throw caught;
    }
  }

  /** The guest writes to `added` from now on. */
  function putOnTop(added: { readonly node: string; readonly image: string }): void {
    surrendered = { image, path: join(layerDirectory, diskLayerName(layers.length)) };
    ({ node, image } = added);
    proposed = undefined;
  }

  async function settle(): Promise<void> {
    if (proposed !== undefined) {
      if (nodesInUse(await qmp.execute('query-block')).includes(proposed.node)) putOnTop(proposed);
      else await rm(join(instance, proposed.image), { force: true });
      proposed = undefined;
    }
    if (surrendered === undefined) return;
    await confiscate(join(instance, surrendered.image), surrendered.path, owner);
    layers.push({ path: surrendered.path, known: undefined });
    surrendered = undefined;
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
    settle,
    async freeze() {
      await settle();
      made++;
      const added = { node: overlayNode(made), image: overlayImage(made) };
      await addOverlay(added);
      proposed = added;
      await qmp.execute('blockdev-snapshot', { node, overlay: added.node });
      putOnTop(added);
      await settle();
    },
    async attach(lower, signal) {
      if (lower.sameBase && lower.layers.length === 0) return;
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
    },
    learn(known) {
      for (const [index, artifact] of known.entries()) {
        const layer = layers[index];
        if (layer !== undefined) layers[index] = { ...layer, known: artifact };
      }
    },
  };
}
