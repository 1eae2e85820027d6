import { PlatformError } from '@agentenv/core';

/** Read before an answer begins: a file that ends in it gets its true length, whatever stat says. Bytes. */
const HEAD_BYTES = 64 * 1024;

/** The beginning of a body and what is to come. */
export interface FileHead {
  readonly head: Uint8Array;
  /** The body ends with `head`. */
  readonly ended: boolean;
  readonly rest: AsyncIterator<Uint8Array>;
}

export async function readHead(body: AsyncIterable<Uint8Array>): Promise<FileHead> {
  const rest = body[Symbol.asyncIterator]();
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  let ended = false;
  while (bytes < HEAD_BYTES && !ended) {
    const next = await rest.next();
    ended = next.done === true;
    if (next.done !== true) {
      chunks.push(next.value);
      bytes += next.value.length;
    }
  }
  return { head: Buffer.concat(chunks), ended, rest };
}

/** The whole body, exactly `length` bytes where that is promised: what grows is cut, what shrinks is an error. */
export async function* boundedBody(
  { head, ended, rest }: FileHead,
  length: bigint | undefined,
): AsyncGenerator<Uint8Array, void, undefined> {
  let left = length;
  let chunk: Uint8Array | undefined = head;
  try {
    while (chunk !== undefined) {
      if (left !== undefined) {
        if (left < BigInt(chunk.length)) chunk = chunk.subarray(0, Number(left));
        left -= BigInt(chunk.length);
      }
      if (chunk.length > 0) yield chunk;
      if (ended || left === 0n) break;
      const next: IteratorResult<Uint8Array> = await rest.next();
      chunk = next.done === true ? undefined : next.value;
    }
    if (left !== undefined && left > 0n) {
      throw new PlatformError('internal', 'the file became shorter while it was read');
    }
  } finally {
    await rest.return?.();
  }
}
