import { chmod, open, rm, stat } from 'node:fs/promises';
import { type Log, PlatformError, type SnapshotArtifact } from '@agentenv/core';
import type { BackgroundJobs } from './background-jobs.ts';
import type { DiskChain, FrozenLayer } from './disk-chain.ts';
import { LAYER_MODE, mergedImage } from './disk-images.ts';

/** So few layers cost less than merging them. */
const FEW_LAYERS = 4;
const BLOCK = 512;

/** Keeps the chain of a running engine's disk short, behind its captures. */
export interface DiskCompactor extends AsyncDisposable {
  /** Merges in the background what is worth merging; captures go on meanwhile. */
  compact(): void;
}

export interface DiskCompactorOptions {
  readonly disk: Pick<DiskChain, 'layers' | 'newImage' | 'replace' | 'tidy'>;
  /** Virtual size of the disk. */
  readonly bytes: number;
  readonly jobs: BackgroundJobs;
  readonly log: Log;
}

/**
 * How many of the newest layers to merge, of layers of `sizes`, oldest first; 0: none. Every layer joins that is no larger
 * than what is above it together. So each one left is larger than all above it, which bounds their number by the logarithm
 * of the disk, and a byte is written again only when its layer has doubled.
 */
export function layersToMerge(sizes: readonly number[]): number {
  if (sizes.length < FEW_LAYERS) return 0;
  let above = 0;
  let count = 0;
  for (const [index, size] of sizes.toReversed().entries()) {
    if (size <= above) count = index + 1;
    above += size;
  }
  return count;
}

async function onPlatter(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

/** Disposing ends a merge under way; its files are gone then, unless the engine did not answer in time. */
export function createDiskCompactor({ disk, bytes, jobs, log }: DiskCompactorOptions): DiskCompactor {
  const stopping = new AbortController();
  const { signal } = stopping;
  let underWay: Promise<void> | undefined;
  /** The newest layer when a merge failed last: what failed is not tried again before there is another one. */
  let failedBelow: string | undefined;

  async function worthMerging(): Promise<readonly FrozenLayer[]> {
    const layers = [...disk.layers];
    if (layers.at(-1)?.path === failedBelow) return [];
    // What a layer takes on the host's disk: discarded blocks are holes.
    const sizes = await Promise.all(layers.map(async ({ path }) => (await stat(path)).blocks * BLOCK));
    return layers.slice(layers.length - layersToMerge(sizes));
  }

  /** One layer on the platter that shows what `parts` show. */
  async function merged(parts: readonly FrozenLayer[]): Promise<SnapshotArtifact> {
    const target = disk.newImage(mergedImage);
    try {
      const sources = parts.map(({ path }) => path);
      const { bytes: size, sha256 } = await jobs.run(
        { kind: 'merge-disk-layers', sources, target, size: bytes },
        signal,
      );
      await chmod(target, LAYER_MODE);
      await onPlatter(target);
      return { path: target, size, sha256 };
    } catch (caught) {
      await rm(target, { force: true });
      throw caught;
    }
  }

  async function mergeAll(): Promise<void> {
    try {
      await disk.tidy();
      for (let parts = await worthMerging(); parts.length > 0; parts = await worthMerging()) {
        try {
          await disk.replace(parts, await merged(parts), signal);
        } finally {
          await disk.tidy();
        }
      }
    } catch (caught) {
      failedBelow = disk.layers.at(-1)?.path;
      // Nothing is lost: the layers are as they were, or the merged one is among them.
      if (!signal.aborted) log.warn({ error: PlatformError.fromUnknown(caught) }, 'layers of a disk were not merged');
    }
  }

  return {
    compact() {
      if (signal.aborted) return;
      underWay ??= mergeAll().finally(() => {
        underWay = undefined;
      });
    },
    async [Symbol.asyncDispose]() {
      stopping.abort(new PlatformError('canceled', 'the disk is not merged any more'));
      await underWay;
    },
  };
}
