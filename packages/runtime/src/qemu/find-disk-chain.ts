import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@agentenv/core';
import type { FrozenLayer, Overlay } from './disk-chain.ts';
import { confiscate, dropImages, imageNumber, imagesInUse } from './disk-images.ts';
import type { Qmp } from './qmp.ts';

/** What an engine's directories and its own answer say about its writable disk. */
export interface FoundDiskChain {
  /** Frozen layers, oldest first; what a former server knew of them is found out again by the next capture. */
  readonly layers: readonly FrozenLayer[];
  readonly overlay: Overlay;
}

/**
 * Finds the layers of a running engine that another server made. An overlay that became a layer just before that server
 * died is taken out of the engine's reach now, and what was left of a merge is removed.
 */
export async function findDiskChain(options: {
  readonly qmp: Pick<Qmp, 'execute'>;
  readonly instance: string;
  readonly layerDirectory: string;
  readonly owner: number;
}): Promise<FoundDiskChain> {
  const { qmp, instance, layerDirectory, owner } = options;
  const [top, ...frozen] = await imagesInUse(qmp);
  const overlays = await readdir(instance);
  const lower = await readdir(layerDirectory);
  const layers: FrozenLayer[] = [];
  for (const image of frozen.reverse()) {
    if (!lower.includes(image) && !overlays.includes(image)) {
      throw new PlatformError('sandbox_unavailable', 'a layer of the disk is missing', { details: { image } });
    }
    const path = join(layerDirectory, image);
    await confiscate(join(instance, image), path, owner);
    layers.push({ path, known: undefined });
  }
  const unused = lower.filter((name) => name.endsWith('.qcow2') && !frozen.includes(name));
  await dropImages(
    qmp,
    unused.map((name) => join(layerDirectory, name)),
  );
  const made = Math.max(...[top, ...overlays, ...lower].map(imageNumber));
  return { layers, overlay: { image: top, made } };
}
