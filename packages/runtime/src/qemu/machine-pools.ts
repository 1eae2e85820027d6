import type { Clock, Log } from '@agentenv/core';
import type { StoredSnapshot } from '../backend.ts';
import { createPool, type Pool, type PoolEntry, type PoolStatus } from '../pool/pool.ts';
import { engineShape, type PreparedEngine } from './prepared-engine.ts';
import type { WarmMachine } from './warm-machine.ts';

const RETRY_MS = 1_000;
const DEMAND_WINDOW_MS = 60_000;
/** A create is followed by its first command within this time; making a guest meanwhile would slow both. */
const SETTLE_MS = 500;

/** How many are kept ready when nobody asks, and at most; `high` 0 for none. */
export interface PoolSize {
  readonly low: number;
  readonly high: number;
}

export interface MachinePoolsOptions {
  readonly machines: PoolSize;
  readonly engines: PoolSize;
  readonly makeMachine: (snapshot: StoredSnapshot, signal: AbortSignal) => Promise<WarmMachine>;
  readonly makeEngine: (snapshot: StoredSnapshot, signal: AbortSignal) => Promise<PreparedEngine>;
  readonly clock: Clock;
  readonly log: Log;
}

/**
 * What is made in advance of the templates in use: guests of a template itself, and engines for whatever was captured of
 * its sandboxes. Disposing gives everything up and starts nothing any more.
 */
export interface MachinePools extends AsyncDisposable {
  /** From now on both are kept for this template. */
  warm(template: StoredSnapshot): void;
  /** A guest of exactly this template; undefined when there is none. */
  machine(template: StoredSnapshot): WarmMachine | undefined;
  /** An engine that can restore this capture; undefined when there is none. */
  engine(snapshot: StoredSnapshot): PreparedEngine | undefined;
  /** While held nothing new is started. */
  foreground(): Disposable;
  /** Gives up what was made of a template that is no longer trusted. */
  close(directory: string): Promise<void>;
  /** For memory pressure: gives everything up until `resume`. */
  suspend(): Promise<void>;
  resume(): void;
  status(): { readonly pool: PoolStatus; readonly engines: PoolStatus };
}

/** Pools of one kind by what they serve, and what was asked of those that are closed. */
interface PoolSet<T extends PoolEntry> {
  readonly pools: Map<string, Pool<T>>;
  hits: number;
  misses: number;
}

const newSet = <T extends PoolEntry>(): PoolSet<T> => ({ pools: new Map(), hits: 0, misses: 0 });

function statusOf<T extends PoolEntry>({ pools, ...former }: PoolSet<T>): PoolStatus {
  return [...pools.values()]
    .map((pool) => pool.status())
    .reduce(
      (total, { ready, target, hits, misses }) => ({
        ready: total.ready + ready,
        target: total.target + target,
        hits: total.hits + hits,
        misses: total.misses + misses,
      }),
      { ready: 0, target: 0, ...former },
    );
}

async function closeIn<T extends PoolEntry>(set: PoolSet<T>, key: string): Promise<void> {
  const pool = set.pools.get(key);
  set.pools.delete(key);
  if (pool === undefined) return;
  const { hits, misses } = pool.status();
  set.hits += hits;
  set.misses += misses;
  await pool[Symbol.asyncDispose]();
}

export function createMachinePools(options: MachinePoolsOptions): MachinePools {
  const { clock, log } = options;
  const machines = newSet<WarmMachine>();
  const engines = newSet<PreparedEngine>();
  /** Shape of the engines that were made of a template, by its directory. */
  const shapes = new Map<string, string>();
  let closed = false;

  const all = (): readonly Pool<PoolEntry>[] => [...machines.pools.values(), ...engines.pools.values()];

  function keep<T extends PoolEntry>(
    set: PoolSet<T>,
    key: string,
    size: PoolSize,
    create: (signal: AbortSignal) => Promise<T>,
  ): void {
    if (size.high === 0 || set.pools.has(key)) return;
    const timing = { demandWindowMs: DEMAND_WINDOW_MS, retryMs: RETRY_MS, settleMs: SETTLE_MS };
    set.pools.set(key, createPool<T>({ ...size, ...timing, concurrency: 1, clock, log, create }));
  }

  function claim<T extends PoolEntry>(set: PoolSet<T>, key: string): T | undefined {
    const pool = set.pools.get(key);
    // A launch for which nothing is kept.
    if (pool === undefined) set.misses++;
    return pool?.claim();
  }

  return {
    warm(template) {
      if (closed) return;
      const { directory, manifest } = template;
      keep(machines, directory, options.machines, (signal) => options.makeMachine(template, signal));
      const shape = engineShape(manifest);
      shapes.set(directory, shape);
      keep(engines, shape, options.engines, (signal) => options.makeEngine(template, signal));
    },
    machine: ({ directory }) => claim(machines, directory),
    engine: ({ manifest }) => claim(engines, engineShape(manifest)),
    foreground() {
      const held = all().map((pool) => pool.foreground());
      return {
        [Symbol.dispose]() {
          for (const pass of held) pass[Symbol.dispose]();
        },
      };
    },
    async close(directory) {
      const shape = shapes.get(directory);
      shapes.delete(directory);
      const closing = [closeIn(machines, directory)];
      if (shape !== undefined) closing.push(closeIn(engines, shape));
      await Promise.all(closing);
    },
    async suspend() {
      await Promise.all(all().map((pool) => pool.suspend()));
    },
    resume() {
      for (const pool of all()) pool.resume();
    },
    status: () => ({ pool: statusOf(machines), engines: statusOf(engines) }),
    async [Symbol.asyncDispose]() {
      closed = true;
      await Promise.all([
        ...[...machines.pools.keys()].map((key) => closeIn(machines, key)),
        ...[...engines.pools.keys()].map((key) => closeIn(engines, key)),
      ]);
    },
  };
}
