import { Readable } from 'node:stream';
import { type Clock, type LifecycleEventType, PlatformError } from '@agentenv/core';
import type { EventBus, EventMessage } from './event-bus.ts';

export interface EventStreamLimits {
  /** Readers at once. */
  readonly readers: number;
  /** Between two signs of life, milliseconds. */
  readonly heartbeatMs: number;
  /** How long a reader may take nothing while there is something for it, milliseconds. */
  readonly stallMs: number;
  /** What may wait in the stream of a reader, bytes; one event more may. */
  readonly bufferBytes: number;
}

export const DEFAULT_EVENT_STREAM_LIMITS: EventStreamLimits = {
  readers: 64,
  heartbeatMs: 15_000,
  stallMs: 60_000,
  bufferBytes: 64 * 1024,
};

export interface EventStreamRequest {
  /** Undefined: of all sandboxes. */
  readonly sandboxIds: ReadonlySet<string> | undefined;
  readonly types: ReadonlySet<LifecycleEventType> | undefined;
  /** The id of the last event the reader saw; undefined: it wants what comes. */
  readonly after: string | undefined;
}

/** Why a reader was cut off; it may come back with the id it saw last. */
export type CutOffReason = 'lagging' | 'stalled';

/**
 * Lifecycle events as server-sent events. A reader has no queue of its own: it takes from what the bus keeps when it has
 * room, so it costs its stream's buffer however slow it is. One that has fallen behind what is kept, or takes nothing
 * for long, is cut off.
 */
export interface EventStreams extends AsyncDisposable {
  /** The stream for one reader, until `closed`: when its connection is done with it. Too many readers: `capacity`; after disposal: `unavailable`. */
  open(request: EventStreamRequest, closed: AbortSignal): Readable;
  readonly readers: number;
}

/** Milliseconds after which a reader that lost its connection should come back. */
const RETRY_MS = 2_000;
const RETRY_AFTER_SECONDS = 30;
/** How long readers may take for what is left when everything ends, milliseconds. */
const END_MS = 1_000;

const lines = (...text: readonly string[]): string => `${text.join('\n')}\n\n`;
const eventFrame = ({ id, type, json }: EventMessage): string => lines(`id: ${id}`, `event: ${type}`, `data: ${json}`);
/** An id without data tells a reader how far it has come and is no event for it. */
const placeFrame = (id: string): string => lines(': so far', `id: ${id}`);

export function createEventStreams(deps: {
  readonly bus: Pick<EventBus, 'subscribe' | 'end' | 'at' | 'idBefore' | 'after'>;
  readonly clock: Clock;
  readonly limits: EventStreamLimits;
  readonly onCutOff: (reason: CutOffReason) => void;
}): EventStreams {
  const { bus, clock, limits } = deps;
  /** How to end each; resolves when its reader has everything or is gone. */
  const open = new Map<Readable, () => Promise<void>>();
  let disposed = false;

  function read(request: EventStreamRequest, closed: AbortSignal): Readable {
    const { sandboxIds, types } = request;
    let next = bus.end;
    /** Whether the stream has room; it asks again when it has. */
    let room = false;
    let fullSince: number | undefined;
    let heartbeat: Disposable | undefined;
    let over = false;
    const stream = new Readable({ highWaterMark: limits.bufferBytes, read: fill });

    const wanted = ({ sandboxId, type }: EventMessage): boolean =>
      (sandboxIds === undefined || sandboxIds.has(sandboxId)) && (types === undefined || types.has(type));

    function write(frame: string): void {
      room = stream.push(frame);
      fullSince = room ? undefined : (fullSince ?? clock.monotonic());
    }

    function cutOff(reason: CutOffReason): void {
      over = true;
      deps.onCutOff(reason);
      stream.destroy();
    }

    function fill(): void {
      room = true;
      fullSince = undefined;
      pump();
    }

    function pump(): void {
      while (room && !over && next < bus.end) {
        const message = bus.at(next);
        if (message === undefined) {
          cutOff('lagging');
          return;
        }
        next++;
        if (wanted(message)) write(eventFrame(message));
      }
    }

    function beat(): void {
      if (room) {
        write(placeFrame(bus.idBefore(next)));
      } else if (fullSince !== undefined && clock.monotonic() - fullSince >= limits.stallMs) {
        cutOff('stalled');
        return;
      }
      heartbeat = clock.timer(limits.heartbeatMs, beat);
    }

    function begin(): void {
      write(lines(`retry: ${RETRY_MS}`));
      if (request.after !== undefined) {
        const place = bus.after(request.after);
        next = place.next;
        const data = JSON.stringify({ last_event_id: request.after });
        if (place.missed) write(lines(`id: ${bus.idBefore(next)}`, 'event: stream.missed', `data: ${data}`));
      }
      write(placeFrame(bus.idBefore(next)));
      pump();
      heartbeat = clock.timer(limits.heartbeatMs, beat);
    }

    const subscription = bus.subscribe(() => {
      // Whoever publishes must not wait, and has to be done first.
      if (room) queueMicrotask(pump);
    });
    function stop(): void {
      over = true;
      subscription[Symbol.dispose]();
      heartbeat?.[Symbol.dispose]();
    }
    stream.once('close', () => {
      open.delete(stream);
      stop();
    });
    const gone = Promise.withResolvers<void>();
    open.set(stream, () => {
      pump();
      stop();
      stream.push(null);
      return gone.promise;
    });
    begin();
    closed.addEventListener(
      'abort',
      () => {
        stream.destroy();
        gone.resolve();
      },
      { once: true },
    );
    if (closed.aborted) stream.destroy();
    return stream;
  }

  return {
    open(request, closed) {
      if (disposed) throw new PlatformError('unavailable', 'the server is shutting down');
      if (open.size >= limits.readers) {
        throw new PlatformError('capacity', `there are ${limits.readers} readers of events already`, {
          retryAfterSeconds: RETRY_AFTER_SECONDS,
        });
      }
      return read(request, closed);
    },
    get readers() {
      return open.size;
    },
    async [Symbol.asyncDispose]() {
      disposed = true;
      // They get what they have room for, and an end.
      const ended = Promise.all([...open.values()].map((end) => end()));
      const enough = Promise.withResolvers<void>();
      using _limit = clock.timer(END_MS, enough.resolve);
      await Promise.race([ended, enough.promise]);
      for (const stream of open.keys()) stream.destroy();
    },
  };
}
