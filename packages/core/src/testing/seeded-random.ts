/** Fills a buffer with random bytes; the shape of `Rng` of the domain. */
export interface SeededRandom {
  bytes(length: number): Uint8Array;
  /** Uniform in `0 … limit - 1`. */
  below(limit: number): number;
  /** One element of a non-empty list. */
  pick<const T>(items: readonly [T, ...T[]]): T;
}

/** A reproducible generator (mulberry32) for tests: same seed, same sequence. Never for secrets. */
export function createSeededRandom(seed: number): SeededRandom {
  let state = seed >>> 0;
  function next(): number {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  }
  const below = (limit: number): number => Math.floor(next() * limit);
  return {
    bytes(length) {
      const bytes = new Uint8Array(length);
      for (let index = 0; index < length; index++) bytes[index] = below(256);
      return bytes;
    },
    below,
    pick(items) {
      const [first, ...rest] = items;
      const index = below(items.length);
      return index === 0 ? first : (rest[index - 1] ?? first);
    },
  };
}
