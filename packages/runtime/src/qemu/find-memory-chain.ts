import { readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { type Log, PlatformError } from '@agentenv/core';
import { type MemoryLayer, ownLayerName } from './memory-chain.ts';

const LAYER = /^memory-(\d+)(?:-(\d+))?\.layer$/;
/** Everything of a chain, and a merge that was not finished. */
const OURS = /^memory-\d|^memory\.merging$/;

function numbersOf(name: string): Pick<MemoryLayer, 'first' | 'last'> | undefined {
  const match = LAYER.exec(name);
  if (match === null) return undefined;
  const first = Number(match[1]);
  return { first, last: Number(match[2] ?? first) };
}

/**
 * Finds the memory layers that a former server kept for its engine, oldest first, and removes what a merge replaced or did not
 * finish; what cannot be removed stays until the engine ends. What that server knew of them is found out again by the next
 * capture.
 */
export async function findMemoryChain(directory: string, log: Log): Promise<readonly MemoryLayer[]> {
  const names = (await readdir(directory)).filter((name) => OURS.test(name));
  const found = names.flatMap((name) => numbersOf(name) ?? []);
  const current = found
    .filter((layer) => !found.some(({ first, last }) => isWithin(layer, first, last)))
    .toSorted((left, right) => left.first - right.first);
  const kept = new Set(current.map(ownLayerName));
  const garbage = names.filter((name) => !kept.has(name));
  await Promise.all(garbage.map((name) => rm(join(directory, name), { force: true }))).catch((caught: unknown) => {
    log.warn({ error: PlatformError.fromUnknown(caught) }, 'former memory layers could not be removed');
  });
  return Promise.all(
    current.map(async (numbers) => {
      const path = join(directory, ownLayerName(numbers));
      return { path, bytes: (await stat(path)).size, ...numbers, known: undefined };
    }),
  );
}

/** True for a part of what lies between, not for all of it. */
function isWithin(layer: Pick<MemoryLayer, 'first' | 'last'>, first: number, last: number): boolean {
  return first <= layer.first && layer.last <= last && (first !== layer.first || last !== layer.last);
}
