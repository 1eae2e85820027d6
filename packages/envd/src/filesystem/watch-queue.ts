import type { WatchEvent } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';
import { EventType } from '@agentenv/protocol/filesystem';

/** What waits for one watcher at most, bytes with the cost of keeping it. */
const MAX_WAITING_BYTES = 8 * 1024 * 1024;
/** What waits for all watchers of a sandbox together, bytes. */
const MAX_SHARED_BYTES = 32 * 1024 * 1024;
const EVENT_BYTES = 128;

/** Bits of inotify. */
const MODIFY = 0x2;
const ATTRIB = 0x4;
const MOVED_FROM = 0x40;
const MOVED_TO = 0x80;
const CREATE = 0x100;
const DELETE = 0x200;
const DELETE_SELF = 0x400;
const MOVE_SELF = 0x800;
const QUEUE_OVERFLOW = 0x4000;

/** Types in the order in which one event of the kernel yields them (contract e2b.md section 9.3). */
const TYPES: readonly (readonly [bits: number, type: EventType])[] = [
  [CREATE | MOVED_TO, EventType.CREATE],
  [MOVED_FROM | MOVE_SELF, EventType.RENAME],
  [ATTRIB, EventType.CHMOD],
  [MODIFY, EventType.WRITE],
  [DELETE | DELETE_SELF, EventType.REMOVE],
];

export interface QueuedEvent {
  /** Relative to the watched directory; `.` is the directory itself. */
  readonly name: string;
  readonly type: EventType;
}

/** Memory that the queues of one sandbox share. */
export interface WatchMemory {
  /** false: there is not so much left, and nothing was taken. */
  take(bytes: number): boolean;
  give(bytes: number): void;
}

export function createWatchMemory(limit = MAX_SHARED_BYTES): WatchMemory {
  let taken = 0;
  return {
    take(bytes) {
      if (taken + bytes > limit) return false;
      taken += bytes;
      return true;
    },
    give(bytes) {
      taken -= bytes;
    },
  };
}

/** The events of one watcher on their way to its client. Disposing it drops what waits. */
export interface WatchQueue extends Disposable {
  push(event: WatchEvent): void;
  /** The next event, undefined while there is none. Throws `capacity` behind the last one before some were lost. */
  take(): QueuedEvent | undefined;
  /** Resolves when `take` has something, or throws, or the wait was interrupted. */
  wait(): Promise<void>;
  interrupt(): void;
}

export function createWatchQueue(memory: WatchMemory): WatchQueue {
  let queue: QueuedEvent[] = [];
  /** Events of `queue` that were taken; cut off in large steps. */
  let taken = 0;
  let waiting = 0;
  let lost: PlatformError | undefined;
  let waiter: PromiseWithResolvers<void> | undefined;

  function interrupt(): void {
    waiter?.resolve();
    waiter = undefined;
  }

  function lose(reason: string): void {
    lost ??= new PlatformError('capacity', `events were lost: ${reason}`);
    interrupt();
  }

  const cost = ({ name }: QueuedEvent): number => EVENT_BYTES + 2 * name.length;

  return {
    push({ path, mask }) {
      if (lost !== undefined) return;
      if ((mask & QUEUE_OVERFLOW) !== 0) {
        lose('more changes than the sandbox can report');
        return;
      }
      for (const [bits, type] of TYPES) {
        if ((mask & bits) === 0) continue;
        const event = { name: path === '' ? '.' : path, type };
        const bytes = cost(event);
        if (waiting + bytes > MAX_WAITING_BYTES || !memory.take(bytes)) {
          lose('the client does not keep up');
          return;
        }
        waiting += bytes;
        queue.push(event);
      }
      interrupt();
    },
    take() {
      const event = queue[taken];
      if (event === undefined) {
        if (lost !== undefined) throw lost;
        return undefined;
      }
      taken++;
      waiting -= cost(event);
      memory.give(cost(event));
      if (taken === queue.length || taken >= 1024) {
        queue = queue.slice(taken);
        taken = 0;
      }
      return event;
    },
    async wait() {
      if (taken < queue.length || lost !== undefined) return;
      waiter ??= Promise.withResolvers();
      await waiter.promise;
    },
    interrupt,
    [Symbol.dispose]() {
      lose('the watch has ended');
      memory.give(waiting);
      waiting = 0;
      queue = [];
      taken = 0;
    },
  };
}
