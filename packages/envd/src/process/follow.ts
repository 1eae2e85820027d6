import type { ProcessOutput } from '@agentenv/agent';
import { type Clock, PlatformError } from '@agentenv/core';
import type { ProcessEventSchema } from '@agentenv/protocol/process';
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { ProcessEnd } from './process-end.ts';
import type { ProcessRecord } from './process-record.ts';
import type { Subscriber } from './subscriber.ts';

type Event = MessageInitShape<typeof ProcessEventSchema>['event'];

/** What a stream sends next; the first item is the start event. */
export type FollowedItem =
  | { readonly kind: 'output'; readonly output: ProcessOutput }
  | { readonly kind: 'event'; readonly event: NonNullable<Event> };

/** After a time limit: how long the stream waits for the guest to report the kill it made, milliseconds. */
const KILL_REPORT_MS = 500;

export interface FollowOptions {
  readonly clock: Clock;
  /** Silence after which a keepalive event is sent, milliseconds. */
  readonly keepaliveMs: number;
  /** `Clock.monotonic` at which the stream ends with `deadline_exceeded`; undefined = never. */
  readonly deadline: number | undefined;
  /** true: the deadline also ends the process, whose last output then comes before the error. */
  readonly deadlineEndsProcess: boolean;
  /** Aborts when the client is gone. */
  readonly signal: AbortSignal;
}

/**
 * The events of one stream: start, output, keepalives in between, end. Ends early without a word when the client is
 * gone, and with `deadline_exceeded` at the deadline (contract e2b.md section 9.2, semantics 2 to 8).
 */
export async function* followProcess(
  record: ProcessRecord,
  subscriber: Subscriber,
  options: FollowOptions,
): AsyncGenerator<FollowedItem, void, undefined> {
  const { clock, deadline, deadlineEndsProcess, signal } = options;
  const interrupt = (): void => subscriber.interrupt();
  signal.addEventListener('abort', interrupt);
  const limit = deadline === undefined ? undefined : deadline + (deadlineEndsProcess ? KILL_REPORT_MS : 0);
  try {
    yield { kind: 'event', event: { case: 'start', value: { pid: record.pid } } };
    let lastEvent = clock.monotonic();
    while (!signal.aborted) {
      const now = clock.monotonic();
      if (limit !== undefined && now >= limit) subscriber.cut(deadlineExceeded());
      const item = subscriber.take();
      if (item?.kind === 'end') {
        if (deadlineEndsProcess && item.end.byDeadline) throw deadlineExceeded();
        yield endEvent(item.end);
        return;
      }
      if (item !== undefined) {
        lastEvent = now;
        yield item;
        continue;
      }
      if (now - lastEvent >= options.keepaliveMs) {
        lastEvent = now;
        yield { kind: 'event', event: { case: 'keepalive', value: {} } };
        continue;
      }
      const pause = Math.min(lastEvent + options.keepaliveMs, limit ?? Number.POSITIVE_INFINITY) - now;
      using _timer = clock.timer(pause, interrupt);
      await subscriber.wait();
    }
  } finally {
    signal.removeEventListener('abort', interrupt);
    record.unsubscribe(subscriber);
  }
}

function endEvent(end: ProcessEnd): FollowedItem {
  return {
    kind: 'event',
    event: {
      case: 'end',
      value: {
        exitCode: end.exitCode,
        exited: end.exited,
        status: end.status,
        ...(end.error === undefined ? {} : { error: end.error }),
      },
    },
  };
}

function deadlineExceeded(): PlatformError {
  return new PlatformError('deadline_exceeded', 'the time limit of the request has passed');
}
