import { opendir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@agentenv/core';
import type { FrozenLayer, Overlay } from './disk-chain.ts';
import { confiscate, exists, imageNumber, imagesInUse, isOverlay } from './disk-images.ts';
import type { Qmp } from './qmp.ts';

/** Names that are looked at in an engine's directory, which is its own; usual are two. */
const MOST_NAMES = 1_024;

/** What an engine's directories and its own answer say about its writable disk. */
export interface FoundDiskChain {
  /** Frozen layers, oldest first; what a former server knew of them is found out again by the next capture. */
  readonly layers: readonly FrozenLayer[];
  readonly overlay: Overlay;
  /** Paths of images it does not read, though it may have them open: what was left of a merge or of a capture. */
  readonly unused: readonly string[];
}

async function someNames(directory: string): Promise<readonly string[]> {
  const names: string[] = [];
  for await (const { name } of await opendir(directory)) {
    if (names.push(name) >= MOST_NAMES) break;
  }
  return names;
}

/**
 * Finds the layers of a running engine that another server made. An overlay that became a layer just before that server
 * died is taken out of the engine's reach now.
 */
export async function findDiskChain(options: {
  readonly qmp: Pick<Qmp, 'execute'>;
  readonly instance: string;
  readonly layerDirectory: string;
  readonly owner: number;
}): Promise<FoundDiskChain> {
  const { qmp, instance, layerDirectory, owner } = options;
  const [top, ...frozen] = await imagesInUse(qmp);
  const overlays = await someNames(instance);
  const lower = await readdir(layerDirectory);
  const layers: FrozenLayer[] = [];
  for (const image of frozen.toReversed()) {
    if (!lower.includes(image) && !(await exists(join(instance, image)))) {
      throw new PlatformError('sandbox_unavailable', 'a layer of the disk is missing', { details: { image } });
    }
    const path = join(layerDirectory, image);
    await confiscate(join(instance, image), path, owner);
    layers.push({ path, known: undefined });
  }
  const used = new Set([top, ...frozen]);
  const unused = [
    ...lower.filter((name) => name.endsWith('.qcow2') && !used.has(name)).map((name) => join(layerDirectory, name)),
    ...overlays.filter((name) => isOverlay(name) && !used.has(name)).map((name) => join(instance, name)),
  ];
  const made = [top, ...overlays, ...lower].reduce((highest, name) => Math.max(highest, imageNumber(name)), 0);
  return { layers, overlay: { image: top, made }, unused };
}
