import { describe, expect, test } from 'vitest';
import { boundedBody, readHead } from './file-body.ts';
import { randomChunks } from './testing/random-chunks.ts';

async function read(bytes: Uint8Array, length: bigint | undefined): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of boundedBody(await readHead(randomChunks(bytes, [30_000])), length)) chunks.push(chunk);
  return Buffer.concat(chunks);
}

describe('body of a file', () => {
  const bytes = Buffer.alloc(200_000, 'abcdefg');

  test('the head tells whether the file ends in it', async () => {
    expect(await readHead(randomChunks(bytes.subarray(0, 10), [3]))).toMatchObject({ ended: true });
    expect(await readHead(randomChunks(bytes, [30_000]))).toMatchObject({ ended: false });
    expect((await readHead(randomChunks(Buffer.alloc(0), [1]))).head).toHaveLength(0);
  });

  test('is complete with and without a promised length', async () => {
    expect(await read(bytes, undefined)).toEqual(bytes);
    expect(await read(bytes, 200_000n)).toEqual(bytes);
    expect(await read(Buffer.alloc(0), 0n)).toHaveLength(0);
  });

  test('what grew is cut at the promised length', async () => {
    expect(await read(bytes, 70_001n)).toEqual(bytes.subarray(0, 70_001));
  });

  test('what shrank is an error, so that the client does not take it as whole', async () => {
    await expect(read(bytes, 200_001n)).rejects.toThrow('became shorter');
    await expect(read(bytes.subarray(0, 10), 11n)).rejects.toThrow('became shorter');
  });
});
