import type { EventStreams } from '../events/event-stream.ts';
import type { Handlers } from './operations.ts';

/** The stream of what happens to sandboxes. */
export function createEventHandlers({
  eventStreams,
}: {
  readonly eventStreams: Pick<EventStreams, 'open'>;
}): Pick<Handlers, 'streamEvents'> {
  const setOf = <Item>(items: readonly Item[] | undefined): ReadonlySet<Item> | undefined =>
    items === undefined ? undefined : new Set(items);

  return {
    streamEvents: ({ query, header, closed }) => ({
      status: 200,
      body: eventStreams.open(
        {
          sandboxIds: setOf(query.sandboxID),
          types: setOf(query.type),
          after: header['Last-Event-ID']?.toLowerCase(),
        },
        closed,
      ),
      // Nobody in between may keep them back.
      headers: {
        'content-type': 'text/event-stream; charset=utf-8',
        'cache-control': 'no-store',
        'x-accel-buffering': 'no',
      },
    }),
  };
}
