/** Source of random bytes; cryptographic in production, seeded in tests. */
export interface Rng {
  bytes(length: number): Uint8Array;
}
