/** KEY and NONCE of the resync record, bytes each. */
export const RESYNC_KEY_BYTES = 16;

/** Finds the guest's answer to a resync in whatever the former epoch left behind. */
export interface ResyncScanner {
  /** Bytes thrown away so far. */
  readonly discarded: number;
  /** Returns what follows `NONCE NONCE` once it was seen, else undefined; keeps less than one answer of the input. */
  push(chunk: Buffer): Buffer | undefined;
}

/** Creates a scanner for one attempt with its fresh nonce (guest/PROTOCOL.md, "Resync"). */
export function createResyncScanner(nonce: Uint8Array): ResyncScanner {
  const answer = Buffer.concat([nonce, nonce]);
  const overlap = answer.length - 1;
  let tail = Buffer.alloc(0);
  let discarded = 0;

  return {
    get discarded() {
      return discarded;
    },
    push(chunk) {
      // An answer across the border lies in the kept tail and the first `overlap` bytes of the chunk.
      const border = Buffer.concat([tail, chunk.subarray(0, overlap)]);
      const inBorder = border.indexOf(answer);
      if (inBorder >= 0) {
        discarded += inBorder;
        return chunk.subarray(inBorder + answer.length - tail.length);
      }
      const inChunk = chunk.indexOf(answer);
      if (inChunk >= 0) {
        discarded += tail.length + inChunk;
        return chunk.subarray(inChunk + answer.length);
      }
      const kept = chunk.length >= overlap ? chunk.subarray(chunk.length - overlap) : border.subarray(-overlap);
      discarded += tail.length + chunk.length - kept.length;
      tail = Buffer.from(kept);
      return undefined;
    },
  };
}
