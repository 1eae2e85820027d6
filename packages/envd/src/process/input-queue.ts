import { PlatformError } from '@agentenv/core';

/** Input that may wait for one process, bytes. */
const MAX_WAITING_BYTES = 16 * 1024 * 1024;

/** Keeps the inputs of one process in order, whole, and bounded. */
export interface InputQueue {
  /** Runs `write` when everything before it is done; rejects `capacity` when more than 16 MiB would wait. */
  run(bytes: number, write: () => Promise<void>): Promise<void>;
}

export function createInputQueue(): InputQueue {
  let waiting = 0;
  let last: Promise<void> = Promise.resolve();
  return {
    async run(bytes, write) {
      if (waiting > 0 && waiting + bytes > MAX_WAITING_BYTES) {
        throw new PlatformError('capacity', `more than ${MAX_WAITING_BYTES} bytes of input wait for this process`);
      }
      waiting += bytes;
      const mine = last.then(write).finally(() => {
        waiting -= bytes;
      });
      // The next one goes on whatever became of this one.
      last = mine.catch(() => undefined);
      await mine;
    },
  };
}
