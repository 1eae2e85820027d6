import { describe, expect, it } from 'vitest';
import { deriveAccessToken, deriveTrafficAccessToken } from './tokens.ts';

const SEED = 'test-seed';
const ID = '01936f8e-72f5-7000-8000-000000000001';

describe('token derivation', () => {
  it('matches the published vectors', () => {
    expect(deriveAccessToken(SEED, ID)).toBe('4f00f2a93a87c37161ae01c59b6d4f84506668113441277e9f6272dd4bfae1a7');
    expect(deriveTrafficAccessToken(SEED, ID)).toBe('586547d7c10facb0f4871297fdbfd9d2b4376f4b02b2e1487646c1c87a293bd8');
  });

  it('gives every sandbox, every seed and every purpose another token', () => {
    const tokens = ['one', 'two'].flatMap((id) =>
      ['seed-a', 'seed-b'].flatMap((seed) => [deriveAccessToken(seed, id), deriveTrafficAccessToken(seed, id)]),
    );
    expect(new Set(tokens).size).toBe(tokens.length);
  });
});
