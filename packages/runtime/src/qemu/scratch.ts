/** Buffers larger than this together are not kept for the next job. */
const MAX_KEPT = 16 * 1024 * 1024;

/**
 * The buffers of a thread whose jobs run one after the other. Memory that is new to a process costs a fault for each page,
 * which is most of the time of a short job; what the job before used costs nothing.
 */
export interface Scratch extends Disposable {
  /** Bytes with whatever contents, aligned for every typed array, the job's alone until it is over. */
  take(length: number): Buffer;
  /** The job is over: the next one gets the same buffers. */
  [Symbol.dispose](): void;
}

export function createScratch(): Scratch {
  let kept: Buffer[] = [];
  let taken = 0;
  return {
    take(length) {
      const index = taken++;
      let buffer = kept[index];
      if (buffer === undefined || buffer.length < length) {
        buffer = Buffer.allocUnsafeSlow(length);
        kept[index] = buffer;
      }
      return buffer.subarray(0, length);
    },
    [Symbol.dispose]() {
      taken = 0;
      if (kept.reduce((sum, { length }) => sum + length, 0) > MAX_KEPT) kept = [];
    },
  };
}
