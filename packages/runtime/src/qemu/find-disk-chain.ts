import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@agentenv/core';
import { confiscate, type FrozenLayer, type Overlay, overlayImage, overlayNode, secureLayer } from './disk-chain.ts';
import type { Qmp } from './qmp.ts';
import { isFields } from './qmp-events.ts';
import { diskLayerName } from './snapshot-files.ts';

/** What an engine's directories and its own answer say about its writable disk. */
export interface FoundDiskChain {
  /** Frozen layers, oldest first; what a former server knew of them is found out again by the next capture. */
  readonly layers: readonly FrozenLayer[];
  readonly overlay: Overlay;
}

const OVERLAY = /(?:^|\/)upper(?:-([1-9]\d*))?\.qcow2$/;

function overlayNumber(filename: string): number | undefined {
  const match = OVERLAY.exec(filename);
  return match === null ? undefined : Number(match[1] ?? 0);
}

/** An image that was put together by hand has its description for a name (qapi `ImageInfo`). */
function fileOf(filename: unknown): string {
  if (typeof filename !== 'string') return '';
  if (!filename.startsWith('json:')) return filename;
  const described: unknown = JSON.parse(filename.slice('json:'.length));
  return isFields(described) && isFields(described.file) ? String(described.file.filename) : '';
}

/** Numbers of the overlays in a `query-block` answer's image and below it, the one in use first. */
function overlaysInUse(image: unknown): readonly number[] {
  const numbers: number[] = [];
  for (let at = image; isFields(at); at = at['backing-image']) {
    const number = overlayNumber(fileOf(at.filename));
    if (number !== undefined) numbers.push(number);
  }
  return numbers;
}

async function askForOverlays(qmp: Pick<Qmp, 'execute'>): Promise<readonly number[]> {
  const devices = await qmp.execute('query-block');
  for (const device of Array.isArray(devices) ? devices : []) {
    const inserted = isFields(device) && isFields(device.inserted) ? device.inserted : {};
    const overlays = overlaysInUse(inserted.image);
    if (overlays.length > 0) return overlays;
  }
  throw new PlatformError('sandbox_unavailable', 'the engine does not know its writable disk');
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
  const [top = 0, ...frozen] = await askForOverlays(qmp);
  const images = (await readdir(instance)).flatMap((name) => overlayNumber(name) ?? []);
  const known = new Set(await readdir(layerDirectory));
  const layers: FrozenLayer[] = [];
  const next = (): string => join(layerDirectory, diskLayerName(layers.length));
  for (let path = next(); known.has(diskLayerName(layers.length)); path = next()) {
    await secureLayer(path, owner);
    layers.push({ path, known: undefined });
  }
  for (const number of frozen.filter((candidate) => images.includes(candidate)).reverse()) {
    const path = next();
    await confiscate(join(instance, overlayImage(number)), path, owner);
    layers.push({ path, known: undefined });
  }
  const overlay = { node: overlayNode(top), image: overlayImage(top), made: Math.max(top, ...images) };
  return { layers, overlay };
}
