import type { Rng } from '@agentenv/core';

const BYTES = 16;

/** A new secret for the agent channel of one generation, hex. */
export function newChannelKey(rng: Rng): string {
  return rng.bytes(BYTES).toHex();
}
