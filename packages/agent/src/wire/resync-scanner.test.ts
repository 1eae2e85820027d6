import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createResyncScanner } from './resync-scanner.ts';

const nonce = Buffer.from('0123456789abcdef');
const answer = Buffer.concat([nonce, nonce]);

function scan(chunks: readonly Buffer[]): { readonly rest: Buffer | undefined; readonly discarded: number } {
  const scanner = createResyncScanner(nonce);
  const collected: Buffer[] = [];
  let found = false;
  for (const chunk of chunks) {
    const rest = found ? chunk : scanner.push(chunk);
    if (rest !== undefined) {
      found = true;
      collected.push(rest);
    }
  }
  return { rest: found ? Buffer.concat(collected) : undefined, discarded: scanner.discarded };
}

describe('resync scanner', () => {
  it('finds the answer behind stale bytes however they are cut, and keeps what follows', () => {
    // Stale bytes made of nonces and pieces of them are the hardest to tell from the answer.
    const noise = fc
      .array(
        fc.oneof(
          fc.uint8Array({ maxLength: 50 }),
          fc.nat(15).map((cut) => nonce.subarray(cut)),
        ),
        { maxLength: 6 },
      )
      .map((parts) => Buffer.concat(parts))
      .filter((bytes) => Buffer.concat([bytes, answer]).indexOf(answer) === bytes.length);
    fc.assert(
      fc.property(
        noise,
        fc.uint8Array({ maxLength: 80 }),
        fc.array(fc.nat(400), { maxLength: 8 }),
        (stale, after, cuts) => {
          const bytes = Buffer.concat([stale, answer, after]);
          const borders = [...new Set([0, ...cuts.filter((cut) => cut < bytes.length), bytes.length])].sort(
            (a, b) => a - b,
          );
          const chunks = borders.slice(1).map((end, index) => bytes.subarray(borders[index], end));
          for (const cut of [chunks, [...bytes].map((byte) => Buffer.of(byte))]) {
            expect(scan(cut)).toEqual({ rest: Buffer.from(after), discarded: stale.length });
          }
        },
      ),
      { numRuns: 300 },
    );
  });

  it('one nonce alone is no answer', () => {
    expect(scan([nonce, Buffer.from('x'), nonce]).rest).toBeUndefined();
  });
});
