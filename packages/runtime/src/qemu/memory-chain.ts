import { rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { type Log, PlatformError, type SnapshotArtifact } from '@agentenv/core';
import type { BackgroundJobs } from './background-jobs.ts';
import { oldestToMerge } from './merge-rule.ts';
import { linked, syncFile } from './snapshot-files.ts';

/** Layers a capture is written upon at most; with more it holds everything that differs from the base again. */
export const MAX_MEMORY_LAYERS = 24;
/** Layers that are merged in the background, before a capture would have to. */
export const MERGED_MEMORY_LAYERS = 12;
/** Share of the memory that the layers above the lowest may hold together before they are merged. */
const MAX_UPPER_SHARE = 0.5;
/** A merge that is not complete; a later server removes it. */
const MERGING = 'memory.merging';

/** A layer of memory under a name of its engine's. */
export interface MemoryLayer {
  readonly path: string;
  /** Size of the file. */
  readonly bytes: number;
  /** Numbers of the first and the last layer it stands for. */
  readonly first: number;
  readonly last: number;
  /** Once it is on the platter and hashed. */
  readonly known: SnapshotArtifact | undefined;
}

/** Name of a layer in the directory of its engine. */
export function ownLayerName({ first, last }: Pick<MemoryLayer, 'first' | 'last'>): string {
  return first === last ? `memory-${first}.layer` : `memory-${first}-${last}.layer`;
}

/** The layers of a chain for the time of one capture; disposing lets the chain remove what is not needed any more. */
export interface BorrowedLayers extends AsyncDisposable {
  /** Oldest first; their files stay. */
  readonly layers: readonly MemoryLayer[];
  /**
   * The capture is complete: `captured` are its layers, all of these or none, and one more. The chain goes on upon them,
   * or as it was where they cannot get names of its own.
   */
  follow(captured: readonly SnapshotArtifact[]): Promise<void>;
}

/**
 * What was captured of an engine's memory so far: layers upon the base it maps, under names of its own, so that they
 * outlive the captures they belong to. A capture compares contents, so whichever layers a chain has are never wrong: with
 * others it holds more. One capture at a time uses it.
 */
export interface MemoryChain extends AsyncDisposable {
  /** Oldest first. */
  readonly layers: readonly MemoryLayer[];
  /** Takes names of the layers an engine is restored from; the chain stays empty where that cannot be. */
  take(layers: readonly SnapshotArtifact[]): Promise<void>;
  borrow(): BorrowedLayers;
  /**
   * Merges a long chain in the background; captures go on upon the former layers meanwhile. Resolves once that is over: a
   * failure is logged, the chain is as it was, and it is tried again upon the next layer. Disposing ends it.
   */
  compact(): Promise<void>;
}

export interface MemoryChainOptions {
  /** Of root's, and the engine's alone. */
  readonly directory: string;
  /** What lies there already, oldest first. */
  readonly layers: readonly MemoryLayer[];
  /** Bytes of guest memory. */
  readonly size: number;
  readonly jobs: BackgroundJobs;
  readonly log: Log;
}

const bytesOf = (layers: readonly MemoryLayer[]): number => layers.reduce((sum, { bytes }) => sum + bytes, 0);

/** Which layers to merge, as the index of the oldest; undefined for none. Half of them at least, so that it is worth it. */
export function mergeFrom(layers: readonly MemoryLayer[], size: number): number | undefined {
  const long = layers.length >= MERGED_MEMORY_LAYERS;
  const large = layers.length > 2 && bytesOf(layers.slice(1)) > size * MAX_UPPER_SHARE;
  if (!long && !large) return undefined;
  const from = oldestToMerge(layers.map(({ bytes }) => bytes));
  return from < 0 || from > layers.length / 2 ? 0 : from;
}

export function createMemoryChain(options: MemoryChainOptions): MemoryChain {
  const { directory, size, jobs, log } = options;
  let layers = options.layers;
  let next = Math.max(-1, ...layers.map(({ last }) => last)) + 1;
  /** Names taken here and not removed yet. */
  const names = new Set(layers.map(({ path }) => path));
  const borrowers = new Set<BorrowedLayers>();
  const stopping = new AbortController();
  const { signal } = stopping;
  let compacting: Promise<void> | undefined;
  /** The newest layer when a merge failed last: what failed is not tried again before there is another one. */
  let failedBelow: string | undefined;
  /** The last merge: a capture that began before it is about its parts. */
  let merged: { readonly parts: readonly MemoryLayer[]; readonly whole: MemoryLayer } | undefined;

  /** Gives a captured layer a name here; undefined where the file system has no second names. */
  async function keep(known: SnapshotArtifact): Promise<MemoryLayer | undefined> {
    const number = next++;
    const path = join(directory, ownLayerName({ first: number, last: number }));
    if (!(await linked(known.path, path))) return undefined;
    names.add(path);
    return { path, bytes: known.size, first: number, last: number, known: { ...known, path } };
  }

  /** The chain with the parts of the last merge replaced, where it has them. */
  function withMerge(chain: readonly MemoryLayer[]): readonly MemoryLayer[] {
    if (merged === undefined) return chain;
    const { parts, whole } = merged;
    const from = chain.findIndex(({ path }) => path === parts[0]?.path);
    const all = from >= 0 && parts.every(({ path }, index) => chain[from + index]?.path === path);
    return all ? chain.toSpliced(from, parts.length, whole) : chain;
  }

  /** Removes the names nobody uses any more. */
  async function prune(): Promise<void> {
    if (borrowers.size > 0 || compacting !== undefined) return;
    const used = new Set(layers.map(({ path }) => path));
    for (const name of [...names].filter((candidate) => !used.has(candidate))) {
      await rm(name, { force: true });
      names.delete(name);
    }
  }

  async function merge(parts: readonly MemoryLayer[]): Promise<void> {
    const target = join(directory, MERGING);
    const numbers = { first: parts[0]?.first ?? 0, last: parts.at(-1)?.last ?? 0 };
    try {
      // Of a former server, which could not be removed when its engine was found.
      await rm(target, { force: true });
      const sources = parts.map(({ path }) => path);
      const { bytes, sha256 } = await jobs.run({ kind: 'merge-layers', sources, target, size }, signal);
      await syncFile(target);
      signal.throwIfAborted();
      const path = join(directory, ownLayerName(numbers));
      names.add(path);
      await rename(target, path);
      merged = { parts, whole: { path, bytes, ...numbers, known: { path, size: bytes, sha256 } } };
      layers = withMerge(layers);
    } finally {
      await rm(target, { force: true });
    }
  }

  /** Nothing is lost by a failure: the next attempt does it, or a capture goes without. */
  function warn(caught: unknown, what: string): void {
    if (!signal.aborted) log.warn({ error: PlatformError.fromUnknown(caught) }, what);
  }

  return {
    get layers() {
      return layers;
    },
    async take(captured) {
      const kept: MemoryLayer[] = [];
      for (const layer of captured) {
        const own = await keep(layer);
        if (own === undefined) return;
        kept.push(own);
      }
      layers = kept;
    },
    borrow() {
      const former = layers;
      const borrowed: BorrowedLayers = {
        layers: former,
        async follow(captured) {
          const added = captured.at(-1);
          if (added === undefined) return;
          try {
            const below = captured.length > former.length ? former : [];
            const own = await keep(added);
            if (own === undefined) return;
            const known = below.map((layer, index) => {
              const artifact = captured[index];
              return artifact === undefined ? layer : { ...layer, known: { ...artifact, path: layer.path } };
            });
            layers = withMerge([...known, own]);
          } catch (caught) {
            warn(caught, 'a captured memory layer could not be kept');
          }
        },
        async [Symbol.asyncDispose]() {
          borrowers.delete(borrowed);
          await prune().catch((caught: unknown) => warn(caught, 'former memory layers could not be removed'));
        },
      };
      borrowers.add(borrowed);
      return borrowed;
    },
    async compact() {
      const from = mergeFrom(layers, size);
      const newest = layers.at(-1)?.path;
      if (signal.aborted || compacting !== undefined || from === undefined || newest === failedBelow) return compacting;
      compacting = merge(layers.slice(from))
        .catch((caught: unknown) => {
          failedBelow = newest;
          warn(caught, 'layers of captured memory could not be merged');
        })
        .then(() => {
          compacting = undefined;
          return prune();
        })
        .catch((caught: unknown) => warn(caught, 'former memory layers could not be removed'));
      return compacting;
    },
    async [Symbol.asyncDispose]() {
      stopping.abort(new PlatformError('canceled', 'the memory is not merged any more'));
      await compacting;
    },
  };
}
