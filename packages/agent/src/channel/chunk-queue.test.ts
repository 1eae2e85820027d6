import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createChunkQueue } from './chunk-queue.ts';

describe('chunk queue', () => {
  it('returns the bytes in order whatever the pieces', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.integer({ min: 1, max: 9000 }), fc.boolean()), { maxLength: 30 }), (steps) => {
        const queue = createChunkQueue();
        const sent: Buffer[] = [];
        const got: Buffer[] = [];
        const take = () => {
          const chunk = queue.shift();
          if (chunk !== undefined) got.push(Buffer.from(chunk));
        };
        for (const [size, shift] of steps) {
          const piece = Buffer.alloc(size, sent.length);
          sent.push(piece);
          queue.push(piece);
          if (shift) take();
        }
        while (queue.length > 0) take();
        expect(Buffer.concat(got).equals(Buffer.concat(sent))).toBe(true);
        expect(queue.shift()).toBeUndefined();
      }),
    );
  });

  it('does not keep a large buffer alive for a tiny piece of it', () => {
    const queue = createChunkQueue();
    for (let index = 0; index < 1000; index++) queue.push(Buffer.alloc(65_536).subarray(0, 1));
    queue.push(Buffer.alloc(65_536).subarray(0, 5000));
    let memory = 0;
    for (let chunk = queue.shift(); chunk !== undefined; chunk = queue.shift()) memory += chunk.buffer.byteLength;
    expect(memory).toBeLessThan(64 * 1024);
  });
});
