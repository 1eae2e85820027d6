import { rm } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { PlatformError, type SnapshotArtifact } from '@agentenv/core';
import { closeImages, confiscate, imageNode, imagesInUse, overlayImage } from './disk-images.ts';
import { createGate } from './gate.ts';
import { createOverlay } from './qcow2.ts';
import { DISK_NODE, ENGINE_FD, fdPath, fileNodeOf, nodeOf } from './qemu-args.ts';
import type { Qmp } from './qmp.ts';
import { diskLayerName, linkOrCopy, linkOrKeep } from './snapshot-files.ts';

/** A base another than the one the engine was started on. */
const OWN_BASE = 'own-disk.raw';
const OWN_BASE_NODE = 'own-disk';

/** A layer nobody writes to any more. */
export interface FrozenLayer {
  readonly path: string;
  /** Once it was put on the platter and hashed. */
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
   * Until it is disposed only the caller changes the chain, and the files of its layers stay. First brings to its end
   * what failed before, as far as it came.
   */
  hold(signal?: AbortSignal): Promise<Disposable>;
  /**
   * Makes the overlay in use a frozen layer and gives the guest a new one. The chain is held, the guest is stopped and its
   * disks are flushed.
   */
  freeze(): Promise<void>;
  /**
   * Puts frozen layers, and their base where it is another one, below the overlay of an engine that was started without
   * any and whose guest has not run. Rejects with `create_failed` when they cannot be put there; the engine is of no use
   * then.
   */
  attach(lower: DiskLower, signal?: AbortSignal): Promise<void>;
  /** Remembers what a capture found out about a layer, so that the next one need not. */
  learn(path: string, known: SnapshotArtifact): void;
  /** The path of an image that is to take the place of layers; in their directory, never one that was used before. */
  newImage(name: (number: number) => string): string;
  /**
   * Has the engine read `whole`, which shows the same, where it read `parts`, which lie upon each other. The guest may run.
   * Whatever fails, the chain is valid; one of both is to be removed by `tidy`. Once it is aborted the engine is not asked
   * what became of it: `hold` does, or the server that adopts the engine.
   */
  replace(parts: readonly FrozenLayer[], whole: SnapshotArtifact, signal?: AbortSignal): Promise<void>;
  /**
   * Removes images the engine no longer reads. Rejects when one of them cannot be removed: the next call tries that again.
   * The chain is not held while files are removed, which takes its time with large ones.
   */
  tidy(signal?: AbortSignal): Promise<void>;
}

/** What lies below a writable disk. */
export interface DiskLower {
  readonly base: SnapshotArtifact;
  /** True when the base is the one the engine was started on. */
  readonly sameBase: boolean;
  readonly layers: readonly SnapshotArtifact[];
}

export interface DiskChainOptions {
  readonly qmp: Pick<Qmp, 'execute'>;
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
  /** Images of a former server's that the engine does not read, to be removed by `tidy`. */
  readonly unused?: readonly string[];
}

/** The writable end of a chain. */
export interface Overlay {
  /** File in the engine's own directory. */
  readonly image: string;
  /** The highest number of an image so far; the next gets a higher one. */
  readonly made: number;
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

const READ_ONLY = { 'read-only': true };
/** A guest's flush need not reach the platter: what must survive the host is written and synced by a capture. */
const WRITABLE = { discard: 'unmap', cache: { 'no-flush': true } };

/** A node on a file of the directory of layers. */
function layerNode(path: string, backing: string): Readonly<Record<string, unknown>> {
  return imageNode(path, fdPath(ENGINE_FD.layers, basename(path)), backing, READ_ONLY);
}

export function createDiskChain(options: DiskChainOptions): DiskChain {
  const { qmp, instance, layerDirectory, owner, bytes } = options;
  const turns = createGate(1);
  const layers: FrozenLayer[] = [...options.layers];
  let { image, made } = options.overlay ?? { image: overlayImage(0), made: 0 };
  let { base } = options;
  /** An overlay that was to be put on top; whether the engine did is not known. */
  let proposed: string | undefined;
  /** The overlay the engine no longer writes to, which has not come into our hands yet. */
  let surrendered: string | undefined;
  /** What was to be replaced by what; whether the engine did is not known. */
  let replacing: { readonly parts: readonly FrozenLayer[]; readonly whole: SnapshotArtifact } | undefined;
  /** Images the engine no longer reads, and may have open; oldest first. */
  const dropped = new Set(options.unused);
  /** Those it has closed. */
  const closed = new Set<string>();

  const nodeBelow = (index: number): string => {
    const layer = layers[index - 1];
    if (layer !== undefined) return nodeOf(layer.path);
    return basename(base) === OWN_BASE ? OWN_BASE_NODE : DISK_NODE;
  };

  /** Puts another node below one that is in use. */
  async function reopen(above: string, backing: string, how: object, signal: AbortSignal | undefined): Promise<void> {
    const node = nodeOf(above);
    const changed = { driver: 'qcow2', 'node-name': node, file: fileNodeOf(node), backing, ...how };
    await qmp.execute('blockdev-reopen', { options: [changed] }, {}, signal);
  }

  async function addOverlay(added: string): Promise<void> {
    try {
      await createOverlay(join(instance, added), bytes, owner);
      await qmp.execute('blockdev-add', imageNode(added, fdPath(ENGINE_FD.instance, added), null, WRITABLE));
    } catch (caught) {
      // The engine may have it for all that.
      dropped.add(join(instance, added));
      throw caught;
    }
  }

  /** The guest writes to `added` from now on. */
  function putOnTop(added: string): void {
    surrendered = image;
    image = added;
    proposed = undefined;
  }

  async function settleFreeze(signal?: AbortSignal): Promise<void> {
    if (proposed !== undefined) {
      const [top] = await imagesInUse(qmp, signal);
      if (top === proposed) putOnTop(proposed);
      else dropped.add(join(instance, proposed));
      proposed = undefined;
    }
    if (surrendered === undefined) return;
    const path = join(layerDirectory, surrendered);
    await confiscate(join(instance, surrendered), path, owner);
    layers.push({ path, known: undefined });
    surrendered = undefined;
  }

  async function settleReplacement(signal?: AbortSignal): Promise<void> {
    if (replacing === undefined) return;
    const { parts, whole } = replacing;
    const first = layers.findIndex(({ path }) => path === parts[0]?.path);
    const done = (await imagesInUse(qmp, signal)).includes(basename(whole.path));
    if (done) layers.splice(first, parts.length, { path: whole.path, known: whole });
    for (const { path } of done ? parts : [whole]) dropped.add(path);
    replacing = undefined;
  }

  async function hold(signal?: AbortSignal): Promise<Disposable> {
    const turn = await turns.enter(signal);
    try {
      await settleReplacement(signal);
      await settleFreeze(signal);
      return turn;
    } catch (caught) {
      turn[Symbol.dispose]();
      throw caught;
    }
  }

  /** Answers why some of them could not be closed. */
  async function closeDropped(signal: AbortSignal | undefined): Promise<unknown> {
    using _held = await hold(signal);
    const wanted = [...dropped].reverse();
    const { paths, failure } = await closeImages(qmp, wanted, signal);
    for (const path of wanted.filter((candidate) => !paths.includes(candidate))) {
      dropped.delete(path);
      closed.add(path);
    }
    return failure;
  }

  /** The engine opens it by its name in the directory, so it has to get one there. */
  async function linkBase({ path }: SnapshotArtifact): Promise<string> {
    const linked = join(layerDirectory, OWN_BASE);
    if ((await linkOrKeep(path, linked)) === linked) return linked;
    throw new PlatformError('create_failed', 'the disk of the capture lies on another file system');
  }

  /** Nodes for everything below the overlay, the lowest first. */
  function lowerNodes(sameBase: boolean): readonly Readonly<Record<string, unknown>>[] {
    const file = { driver: 'file', filename: fdPath(ENGINE_FD.layers, OWN_BASE), ...READ_ONLY };
    const own = { driver: 'raw', 'node-name': OWN_BASE_NODE, file, ...READ_ONLY };
    return [...(sameBase ? [] : [own]), ...layers.map(({ path }, index) => layerNode(path, nodeBelow(index)))];
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
    hold,
    async freeze() {
      const added = overlayImage(++made);
      await addOverlay(added);
      proposed = added;
      await qmp.execute('blockdev-snapshot', { node: nodeOf(image), overlay: nodeOf(added) });
      putOnTop(added);
      await settleFreeze();
    },
    async attach(lower, signal) {
      if (lower.sameBase && lower.layers.length === 0) return;
      if (!lower.sameBase) base = await linkBase(lower.base);
      for (const layer of await linkDiskLayers(lower.layers, layerDirectory)) {
        layers.push({ path: layer.path, known: layer });
      }
      // The engine takes them one after the other; nobody need wait for its answers in between.
      await Promise.all(lowerNodes(lower.sameBase).map((node) => qmp.execute('blockdev-add', node, {}, signal)));
      await reopen(image, nodeBelow(layers.length), WRITABLE, signal);
    },
    learn(path, known) {
      const index = layers.findIndex((layer) => layer.path === path);
      if (index >= 0) layers[index] = { path, known: { ...known, path } };
    },
    newImage: (name) => join(layerDirectory, name(++made)),
    async replace(parts, whole, signal) {
      using _held = await hold(signal).catch((caught: unknown) => {
        dropped.add(whole.path);
        throw caught;
      });
      const first = layers.findIndex(({ path }) => path === parts[0]?.path);
      const above = layers[first + parts.length];
      replacing = { parts, whole };
      try {
        await qmp.execute('blockdev-add', layerNode(whole.path, nodeBelow(first)), {}, signal);
        await reopen(above?.path ?? image, nodeOf(whole.path), above === undefined ? WRITABLE : READ_ONLY, signal);
      } finally {
        // Whoever stops does not wait for an engine that may hang.
        if (!signal?.aborted) await settleReplacement(signal);
      }
    },
    async tidy(signal) {
      let failure = await closeDropped(signal);
      for (const path of closed) {
        try {
          await rm(path, { force: true });
          closed.delete(path);
        } catch (caught) {
          failure = caught;
        }
      }
      if (failure !== undefined) throw failure;
    },
  };
}
