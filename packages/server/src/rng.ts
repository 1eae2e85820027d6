import { randomBytes } from 'node:crypto';
import type { Rng } from '@agentenv/core';

/** The cryptographic generator of the host. */
export const systemRng: Rng = {
  bytes: (length) => randomBytes(length),
};
