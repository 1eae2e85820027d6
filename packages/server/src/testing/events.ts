import { type Clock, createUuidSource, type Log } from '@agentenv/core';
import { createSeededRandom } from '@agentenv/core/testing';
import { createEventBus, DEFAULT_EVENT_BUS_LIMITS, type EventBus, type EventBusLimits } from '../events/event-bus.ts';
import {
  type CutOffReason,
  createEventStreams,
  DEFAULT_EVENT_STREAM_LIMITS,
  type EventStreamLimits,
  type EventStreams,
} from '../events/event-stream.ts';

export interface TestEvents {
  readonly events: EventBus;
  readonly eventStreams: EventStreams;
  /** Why readers were cut off, in order. */
  readonly cutOffs: readonly CutOffReason[];
}

/** Lifecycle events and their readers, with the limits of production unless given. */
export function createTestEvents(options: {
  readonly clock: Clock;
  readonly log: Log;
  readonly limits?: Partial<EventBusLimits>;
  readonly streamLimits?: Partial<EventStreamLimits>;
}): TestEvents {
  const { clock, log } = options;
  const cutOffs: CutOffReason[] = [];
  const events = createEventBus({
    ...{ clock, log, teamId: 'default', limits: { ...DEFAULT_EVENT_BUS_LIMITS, ...options.limits } },
    ids: createUuidSource({ clock, rng: createSeededRandom(3) }),
    onPublished() {},
  });
  const eventStreams = createEventStreams({
    ...{ bus: events, clock, limits: { ...DEFAULT_EVENT_STREAM_LIMITS, ...options.streamLimits } },
    onCutOff: (reason) => cutOffs.push(reason),
  });
  return { events, eventStreams, cutOffs };
}

/** One block of an event stream, read as the HTML standard says. */
export interface ServerSentEvent {
  readonly id: string | undefined;
  readonly event: string | undefined;
  readonly data: string | undefined;
}

/** The blocks of an event stream that are complete, comments left out; `rest` is the beginning of the next. */
export function parseEventStream(text: string): { readonly blocks: ServerSentEvent[]; readonly rest: string } {
  const parts = text.split('\n\n');
  const rest = parts.pop() ?? '';
  const blocks = parts.map((part) => {
    const fields = new Map<string, string>();
    for (const line of part.split('\n')) {
      const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line) ?? [];
      if (name === undefined || name === '') continue;
      const before = fields.get(name);
      fields.set(name, before === undefined ? (value ?? '') : `${before}\n${value ?? ''}`);
    }
    return { id: fields.get('id'), event: fields.get('event'), data: fields.get('data') };
  });
  return { blocks, rest };
}
