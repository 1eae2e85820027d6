import type { ProcessOutput } from '@agentenv/agent';
import type { ProcessEnd } from './process-end.ts';

type OutputStream = ProcessOutput['stream'];

/** Largest data event, bytes (contract e2b.md section 9.2). */
const MAX_EVENT_BYTES: Readonly<Record<OutputStream, number>> = { stdout: 32_768, stderr: 32_768, pty: 16_384 };
/** Waiting output above which a subscriber counts as behind, bytes. */
const HIGH_WATER_BYTES = 128 * 1024;
/** What one waiting piece costs beside its bytes, so that tiny pieces are bounded too. */
const PIECE_BYTES = 256;

export type SubscriberItem =
  | { readonly kind: 'output'; readonly output: ProcessOutput }
  | { readonly kind: 'end'; readonly end: ProcessEnd };

/** One reader of a process: a bounded queue between the process's output and one client. */
export interface Subscriber {
  /** Bytes that wait to be taken, with what keeping them costs. */
  readonly waiting: number;
  /** false: more output makes it fall behind. */
  readonly hasRoom: boolean;
  push(output: ProcessOutput): void;
  /** Nothing follows; comes after everything pushed. */
  end(end: ProcessEnd): void;
  /** Ends the reader at once, whatever waits. */
  fail(error: Error): void;
  /** Takes nothing more in; `take` throws the error behind what waits now. */
  cut(error: Error): void;
  /** The next item, undefined while there is none; throws what `fail` was given. Small pieces of output are joined. */
  take(): SubscriberItem | undefined;
  /** Resolves when `take` has something, or throws, or the wait was interrupted. */
  wait(): Promise<void>;
  /** Ends the present `wait`. */
  interrupt(): void;
}

/** `onRoom` is called when the subscriber has room again. */
export function createSubscriber(onRoom: () => void): Subscriber {
  const queue: ProcessOutput[] = [];
  let waiting = 0;
  let ending: ProcessEnd | undefined;
  let failure: Error | undefined;
  let cutoff: Error | undefined;
  let waiter: PromiseWithResolvers<void> | undefined;

  function interrupt(): void {
    waiter?.resolve();
    waiter = undefined;
  }

  /** Takes pieces of one stream from the front, up to the size of an event. */
  function takeOutput(first: ProcessOutput): ProcessOutput {
    const { stream } = first;
    const pieces: Uint8Array[] = [];
    let room = MAX_EVENT_BYTES[stream];
    for (let piece = queue[0]; piece !== undefined && piece.stream === stream && room > 0; piece = queue[0]) {
      const fits = piece.data.subarray(0, room);
      pieces.push(fits);
      room -= fits.length;
      waiting -= fits.length;
      if (fits.length === piece.data.length) {
        queue.shift();
        waiting -= PIECE_BYTES;
      } else {
        queue[0] = { stream, data: piece.data.subarray(fits.length) };
      }
    }
    const data = pieces.length === 1 && pieces[0] !== undefined ? pieces[0] : Buffer.concat(pieces);
    return { stream, data };
  }

  return {
    get waiting() {
      return waiting;
    },
    get hasRoom() {
      return waiting <= HIGH_WATER_BYTES || cutoff !== undefined;
    },
    push(output) {
      if ((ending ?? failure ?? cutoff) !== undefined || output.data.length === 0) return;
      queue.push(output);
      waiting += output.data.length + PIECE_BYTES;
      interrupt();
    },
    end(end) {
      ending ??= end;
      interrupt();
    },
    fail(error) {
      failure ??= error;
      queue.length = 0;
      waiting = 0;
      interrupt();
      onRoom();
    },
    cut(error) {
      if (ending === undefined) cutoff ??= error;
      interrupt();
      onRoom();
    },
    take() {
      if (failure !== undefined) throw failure;
      const first = queue[0];
      if (first === undefined) {
        if (cutoff !== undefined) throw cutoff;
        return ending === undefined ? undefined : { kind: 'end', end: ending };
      }
      const wasBehind = waiting > HIGH_WATER_BYTES;
      const output = takeOutput(first);
      if (wasBehind && waiting <= HIGH_WATER_BYTES) onRoom();
      return { kind: 'output', output };
    },
    async wait() {
      if (queue.length > 0 || (ending ?? failure ?? cutoff) !== undefined) return;
      waiter ??= Promise.withResolvers();
      await waiter.promise;
    },
    interrupt,
  };
}
