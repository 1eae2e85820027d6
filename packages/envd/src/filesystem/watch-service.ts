import { posix } from 'node:path';
import type { Agent } from '@agentenv/agent';
import { type Clock, PlatformError } from '@agentenv/core';
import {
  EventType,
  type Filesystem,
  type FilesystemEventSchema,
  type WatchDirResponseSchema,
} from '@agentenv/protocol/filesystem';
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { HandlerContext, ServiceImpl } from '@connectrpc/connect';
import { fileFailure } from '../files/file-failure.ts';
import { CALL_VALUES } from '../rpc/call-values.ts';
import { toEntryInfo } from './entry-info.ts';
import { refuseNetworkMount } from './network-mounts.ts';
import { createWatchMemory, createWatchQueue, type QueuedEvent, type WatchQueue } from './watch-queue.ts';

/** Watchers of the polling kind in one sandbox; the guest has its own limit for all watches. */
const MAX_WATCHERS = 64;
/** Events one poll returns at most; the rest comes with the next. */
const MAX_POLLED = 10_000;
/** Events after which an entry cannot be described any more. */
const WITHOUT_ENTRY: ReadonlySet<EventType> = new Set([EventType.REMOVE, EventType.RENAME]);

export interface WatchServiceDeps {
  readonly agent: Agent;
  readonly clock: Clock;
  /** The absolute path a request means, for the user of its call. */
  readonly resolvePath: (path: string, context: HandlerContext) => Promise<string>;
  /** A fresh id of a polling watcher. */
  readonly newWatcherId: () => string;
}

interface WatchRequest {
  readonly path: string;
  readonly recursive: boolean;
  readonly includeEntry: boolean;
  readonly allowNetworkMounts: boolean;
}

interface Watch extends AsyncDisposable {
  readonly queue: WatchQueue;
  describe(event: QueuedEvent, signal: AbortSignal): Promise<MessageInitShape<typeof FilesystemEventSchema>>;
}

type Watching = Pick<
  ServiceImpl<typeof Filesystem>,
  'watchDir' | 'createWatcher' | 'getWatcherEvents' | 'removeWatcher'
>;

/** The watching calls of `filesystem.Filesystem` (contract e2b.md section 9.3) and what they leave open. */
export interface WatchService extends AsyncDisposable {
  readonly calls: Watching;
}

/** Disposing it ends the polling watchers; streams end with their connections. */
export function createWatchService({ agent, clock, resolvePath, newWatcherId }: WatchServiceDeps): WatchService {
  const watchers = new Map<string, Watch>();
  /** Watchers that are being opened: they have their places already. */
  let opening = 0;
  const memory = createWatchMemory();

  /** Resolves when the watch is armed: whatever happens from then on is in its queue. */
  async function openWatch(request: WatchRequest, context: HandlerContext): Promise<Watch> {
    const path = await resolvePath(request.path, context);
    if (!request.allowNetworkMounts) await refuseNetworkMount(agent, path, context.signal);
    const queue = createWatchQueue(memory);
    const armed = await agent
      .watch(path, { recursive: request.recursive }, queue.push, context.signal)
      .catch((caught: unknown) => {
        queue[Symbol.dispose]();
        throw watchError(caught, path);
      });
    return {
      queue,
      async describe({ name, type }, signal) {
        if (!request.includeEntry || WITHOUT_ENTRY.has(type)) return { name, type };
        const entry = await agent.stat(posix.join(path, name), signal).catch(() => undefined);
        // Whatever the reason, usually that it is gone again: the event stands without it.
        return entry === undefined ? { name, type } : { name, type, entry: toEntryInfo(entry) };
      },
      async [Symbol.asyncDispose]() {
        queue[Symbol.dispose]();
        await armed[Symbol.asyncDispose]();
      },
    };
  }

  function find(id: string): Watch {
    const watch = watchers.get(id);
    if (watch === undefined) throw new PlatformError('not_found', `watcher with id ${id} not found`);
    return watch;
  }

  const calls: Watching = {
    async *watchDir(request, context): AsyncGenerator<MessageInitShape<typeof WatchDirResponseSchema>> {
      const { keepaliveMs, timeoutMs, arrivedAt } = context.values.get(CALL_VALUES);
      const { signal } = context;
      const limit = timeoutMs === undefined ? Number.POSITIVE_INFINITY : arrivedAt + timeoutMs;
      await using watch = await openWatch(request, context);
      const { queue } = watch;
      signal.addEventListener('abort', queue.interrupt);
      yield { event: { case: 'start', value: {} } };
      let lastEvent = clock.monotonic();
      while (!signal.aborted) {
        const event = queue.take();
        const now = clock.monotonic();
        if (event !== undefined) {
          lastEvent = now;
          yield { event: { case: 'filesystem', value: await watch.describe(event, signal) } };
        } else if (now >= limit) {
          throw new PlatformError('deadline_exceeded', 'the time limit of the request has passed');
        } else if (now - lastEvent >= keepaliveMs) {
          lastEvent = now;
          yield { event: { case: 'keepalive', value: {} } };
        } else {
          using _timer = clock.timer(Math.min(lastEvent + keepaliveMs, limit) - now, queue.interrupt);
          await queue.wait();
        }
      }
    },

    async createWatcher(request, context) {
      if (watchers.size + opening >= MAX_WATCHERS) {
        throw new PlatformError('capacity', `${MAX_WATCHERS} watchers exist in this sandbox, the limit`);
      }
      const watcherId = newWatcherId();
      opening++;
      try {
        watchers.set(watcherId, await openWatch(request, context));
      } finally {
        opening--;
      }
      return { watcherId };
    },

    async getWatcherEvents({ watcherId }, { signal }) {
      const watch = find(watcherId);
      const events: MessageInitShape<typeof FilesystemEventSchema>[] = [];
      while (events.length < MAX_POLLED) {
        const event = events.length === 0 ? watch.queue.take() : takeIfAny(watch.queue);
        if (event === undefined) break;
        events.push(await watch.describe(event, signal));
      }
      return { events };
    },

    async removeWatcher({ watcherId }) {
      const watch = find(watcherId);
      watchers.delete(watcherId);
      await watch[Symbol.asyncDispose]();
      return {};
    },
  };

  return {
    calls,
    async [Symbol.asyncDispose]() {
      const open = [...watchers.values()];
      watchers.clear();
      await Promise.all(open.map((watch) => watch[Symbol.asyncDispose]()));
    },
  };
}

/** The next event; a loss is left for the next poll, behind the events that came before it. */
function takeIfAny(queue: WatchQueue): QueuedEvent | undefined {
  try {
    return queue.take();
  } catch {
    // The queue throws the same again.
    return undefined;
  }
}

function watchError(caught: unknown, path: string): PlatformError {
  const error = PlatformError.fromUnknown(caught);
  switch (error.details.status) {
    case 'NOT_FOUND':
      return new PlatformError('not_found', `path not found: ${path}`, { cause: error });
    case 'NOT_DIRECTORY':
      return new PlatformError('invalid_argument', `path is not a directory: ${path}`, { cause: error });
    default:
      return fileFailure(error);
  }
}
