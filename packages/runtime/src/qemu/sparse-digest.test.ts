import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createSparseDigest } from './sparse-digest.ts';

const PAGE = 4096;

/** `pages` holds the fill byte of each page; 0 is an empty page. `holes` says which empty pages are not fed at all. */
function digestOf(pages: readonly number[], holes: ReadonlySet<number> = new Set()): string {
  const digest = createSparseDigest(pages.length * PAGE);
  for (const [index, fill] of pages.entries()) {
    if (!holes.has(index)) digest.update(index * PAGE, Buffer.alloc(PAGE, fill));
  }
  return digest.digest();
}

describe('the digest of a sparse file', () => {
  test('does not depend on whether empty pages are holes', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 0, max: 2 }), { minLength: 1, maxLength: 12 }), (pages) => {
        const empty = new Set(pages.flatMap((fill, index) => (fill === 0 ? [index] : [])));
        expect(digestOf(pages, empty)).toBe(digestOf(pages));
      }),
    );
  });

  test('does not depend on how the data is cut', () => {
    const whole = createSparseDigest(4 * PAGE);
    whole.update(0, Buffer.alloc(4 * PAGE, 7));
    expect(whole.digest()).toBe(digestOf([7, 7, 7, 7]));
    expect(whole.dataBytes).toBe(4 * PAGE);
  });

  test('changes with a byte, a place and the size', () => {
    const reference = digestOf([1, 0, 2]);
    expect(digestOf([1, 2, 0])).not.toBe(reference);
    expect(digestOf([1, 0, 3])).not.toBe(reference);
    expect(digestOf([1, 0, 2, 0])).not.toBe(reference);
  });

  test('covers more pages than one batch', () => {
    const pages = Array.from({ length: 600 }, (_, index) => (index % 255) + 1);
    const changed = pages.with(599, 255);
    expect(digestOf(pages)).toBe(digestOf(pages));
    expect(digestOf(changed)).not.toBe(digestOf(pages));
  });
});
