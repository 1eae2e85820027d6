import {
  type Clock,
  type LifecycleEvent,
  type LifecycleEventType,
  type Log,
  lifecycleEventBody,
  type UuidSource,
} from '@agentenv/core';
import type { EventPublisher } from '../orchestrator/event-publisher.ts';

/** An event as it is handed to everybody who listens. */
export interface EventMessage {
  readonly id: string;
  readonly type: LifecycleEventType;
  readonly sandboxId: string;
  /** Milliseconds since the epoch. */
  readonly at: number;
  /** The whole of it as outsiders get it, one line. */
  readonly json: string;
}

/** Where a reader goes on. */
export interface Place {
  /** What it has to read next. */
  readonly next: number;
  /** Events it has not seen are gone, or nobody can tell. */
  readonly missed: boolean;
}

/**
 * Carries what happened to sandboxes to whoever listens, and keeps the newest events for readers that come back.
 * Publishing calls every listener at once and waits for none; a listener that throws is logged and harms nobody.
 */
export interface EventBus extends EventPublisher {
  /** Calls `listener` with every event from now on; it must only take note. */
  subscribe(listener: (message: EventMessage) => void): Disposable;
  /** Number of the event that comes next; the first has 0. */
  readonly end: number;
  /** The event of a number; undefined when it is not kept any more, or has not been yet. */
  at(number: number): EventMessage | undefined;
  /** The id of the event before `number`, or what stands for the time before all events of this server. */
  idBefore(number: number): string;
  /** Where somebody goes on who has seen everything up to the event with this id. */
  after(id: string): Place;
}

export interface EventBusLimits {
  /** How many events are kept … */
  readonly events: number;
  /** … as long as they have no more bytes than this together. */
  readonly bytes: number;
}

export const DEFAULT_EVENT_BUS_LIMITS: EventBusLimits = { events: 4096, bytes: 8 * 1024 * 1024 };

export function createEventBus(deps: {
  readonly clock: Pick<Clock, 'now'>;
  readonly ids: Pick<UuidSource, 'eventId'>;
  readonly log: Log;
  /** Config `team.slug`. */
  readonly teamId: string;
  readonly limits: EventBusLimits;
  readonly onPublished: (type: LifecycleEventType) => void;
}): EventBus {
  const { clock, ids, limits, log } = deps;
  const listeners = new Set<(message: EventMessage) => void>();
  const kept: { readonly message: EventMessage; readonly bytes: number }[] = [];
  let first = 0;
  let bytes = 0;
  /** The id of the last event that is not kept, or of none. */
  let floor: string = ids.eventId();

  function keep(message: EventMessage): void {
    const size = Buffer.byteLength(message.json);
    kept.push({ message, bytes: size });
    bytes += size;
    while (kept.length > limits.events || (bytes > limits.bytes && kept.length > 1)) {
      const dropped = kept.shift();
      if (dropped === undefined) return;
      first++;
      bytes -= dropped.bytes;
      floor = dropped.message.id;
    }
  }

  function tell(message: EventMessage): void {
    for (const listener of [...listeners]) {
      try {
        listener(message);
      } catch (error) {
        log.error({ eventId: message.id, err: error }, 'a listener of lifecycle events failed');
      }
    }
  }

  return {
    publish({ id: sandboxId, instanceId, templateId, buildId, metadata, resources }, change) {
      const sandbox = { id: sandboxId, instanceId, templateId, buildId, metadata, resources };
      const event: LifecycleEvent = { id: ids.eventId(), at: clock.now(), sandbox, change };
      const { id, at } = event;
      const { type } = change;
      const message = { id, type, sandboxId, at, json: JSON.stringify(lifecycleEventBody(event, deps.teamId)) };
      log.info({ eventId: id, event: type, sandboxId, instanceId }, 'lifecycle event');
      deps.onPublished(type);
      keep(message);
      tell(message);
    },
    subscribe(listener) {
      // Each subscription is one of its own, whatever function it has.
      const own = (message: EventMessage): void => listener(message);
      listeners.add(own);
      return { [Symbol.dispose]: () => listeners.delete(own) };
    },
    get end() {
      return first + kept.length;
    },
    at: (number) => kept[number - first]?.message,
    idBefore: (number) => kept[number - first - 1]?.message.id ?? floor,
    after(id) {
      if (id === floor) return { next: first, missed: false };
      const known = kept.findLastIndex(({ message }) => message.id === id);
      if (known >= 0) return { next: first + known + 1, missed: false };
      // Of a former server, or long ago: whatever is later than it. Ids grow with time.
      const later = kept.findIndex(({ message }) => message.id > id);
      return { next: later < 0 ? first + kept.length : first + later, missed: true };
    },
  };
}
