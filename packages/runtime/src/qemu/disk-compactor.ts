import { chmod, rm, stat } from 'node:fs/promises';
import { type Log, PlatformError, type SnapshotArtifact } from '@agentenv/core';
import type { BackgroundJobs } from './background-jobs.ts';
import type { DiskChain, FrozenLayer } from './disk-chain.ts';
import { LAYER_MODE, mergedImage } from './disk-images.ts';
import { oldestToMerge } from './merge-rule.ts';
import { syncFile } from './snapshot-files.ts';

/** So few layers cost less than merging them. */
const FEW_LAYERS = 4;
const BLOCK = 512;

/** Keeps the chain of a running engine's disk short, behind its captures. */
export interface DiskCompactor extends AsyncDisposable {
  /**
   * Merges in the background what is worth merging, and removes what the engine no longer reads; captures go on meanwhile.
   * Resolves once that is over: a failure is logged, and tried again by the next call.
   */
  compact(): Promise<void>;
}

export interface DiskCompactorOptions {
  readonly disk: Pick<DiskChain, 'layers' | 'newImage' | 'replace' | 'tidy'>;
  /** Virtual size of the disk. */
  readonly bytes: number;
  readonly jobs: BackgroundJobs;
  readonly log: Log;
}

/** How many of the newest layers to merge, of layers of `sizes`, oldest first; 0: none. */
export function layersToMerge(sizes: readonly number[]): number {
  if (sizes.length < FEW_LAYERS) return 0;
  const from = oldestToMerge(sizes);
  // One alone, which a file system may say takes nothing, stays what it is.
  return from < 0 || from === sizes.length - 1 ? 0 : sizes.length - from;
}

/**
 * Disposing ends a merge under way and does not wait for the engine: whatever its chain is then, the server that adopts it
 * finds out, and removes what is left.
 */
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
      await syncFile(target);
      return { path: target, size, sha256 };
    } catch (caught) {
      await rm(target, { force: true });
      throw caught;
    }
  }

  /** What cannot be removed takes room; it is no reason not to merge. */
  async function tidy(): Promise<void> {
    if (signal.aborted) return;
    await disk.tidy(signal).catch((caught: unknown) => warn(caught, 'images of a disk were not removed'));
  }

  function warn(caught: unknown, what: string): void {
    if (!signal.aborted) log.warn({ error: PlatformError.fromUnknown(caught) }, what);
  }

  async function mergeAll(): Promise<void> {
    await tidy();
    try {
      for (let parts = await worthMerging(); parts.length > 0; parts = await worthMerging()) {
        try {
          await disk.replace(parts, await merged(parts), signal);
        } finally {
          await tidy();
        }
      }
    } catch (caught) {
      failedBelow = disk.layers.at(-1)?.path;
      // Nothing is lost: the layers are as they were, or the merged one is among them.
      warn(caught, 'layers of a disk were not merged');
    }
  }

  return {
    async compact() {
      if (signal.aborted) return;
      underWay ??= mergeAll().finally(() => {
        underWay = undefined;
      });
      await underWay;
    },
    async [Symbol.asyncDispose]() {
      stopping.abort(new PlatformError('canceled', 'the disk is not merged any more'));
      await underWay;
    },
  };
}
