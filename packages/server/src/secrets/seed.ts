import { join } from 'node:path';
import { PlatformError, type Rng } from '@agentenv/core';
import { readManagedFile } from './managed-file.ts';

const MANAGED_SEED = /^[0-9a-f]{64}$/;
const SEED_BYTES = 32;

export interface SeedOptions {
  /** `sandbox.access_token_hash_seed`; trimmed. */
  readonly configured: string | undefined;
  readonly homePath: string;
  readonly uid: number;
  readonly rng: Rng;
  /** Sandboxes that already have tokens from a seed: without it their tokens would change under their clients. */
  readonly existingTokens: boolean;
}

/** The seed of all sandbox tokens (agentenv.md section 2.2): configured, or managed in the home directory. */
export async function loadTokenSeed(options: SeedOptions): Promise<string> {
  if (options.configured !== undefined) {
    const seed = options.configured.trim();
    if (seed === '') throw new PlatformError('invalid_argument', 'sandbox.access_token_hash_seed is empty');
    return seed;
  }
  const path = join(options.homePath, 'secrets/sandbox-access-token-hash-seed');
  const hex = (bytes: number) => Buffer.from(options.rng.bytes(bytes)).toString('hex');
  const seed = await readManagedFile({
    path,
    uid: options.uid,
    create: options.existingTokens
      ? { refuse: 'there are sandboxes whose tokens were made from it; restore it' }
      : () => hex(SEED_BYTES),
    unique: hex(8),
  });
  if (!MANAGED_SEED.test(seed)) {
    throw new PlatformError(
      'invalid_argument',
      `${path} does not hold a seed: 64 lower-case hex characters are needed`,
    );
  }
  return seed;
}
