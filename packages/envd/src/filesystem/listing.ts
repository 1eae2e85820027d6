import type { Agent, ListPage } from '@agentenv/agent';
import { ListDirResponseSchema } from '@agentenv/protocol/filesystem';
import { create, toBinary } from '@bufbuild/protobuf';
import { toEntryInfo, toEntryJson } from './entry-info.ts';

/** Entries asked for at once: their conversion holds everybody else up, so it is done in small pieces. */
export const PAGE_ENTRIES = 4000;

/** The first page and, as they are asked for, all others. Each is one call of the guest, with its deadline. */
export async function* pagesOf(
  agent: Pick<Agent, 'listDir'>,
  path: string,
  depth: number,
  first: ListPage,
  signal: AbortSignal,
): AsyncGenerator<ListPage, void, undefined> {
  let page = first;
  yield page;
  while (page.next !== undefined) {
    page = await agent.listDir(path, { depth, max: PAGE_ENTRIES, after: page.next }, signal);
    yield page;
  }
}

/**
 * A `ListDirResponse` of any length, a page at a time: what a listing takes in memory does not depend on its length. In
 * binary, lists of one message after another are one list.
 */
export async function* encodeListing(
  codec: 'json' | 'binary',
  pages: AsyncIterable<ListPage>,
): AsyncGenerator<Uint8Array, void, undefined> {
  let separator = '{"entries":[';
  for await (const { entries } of pages) {
    if (codec === 'binary') {
      yield toBinary(ListDirResponseSchema, create(ListDirResponseSchema, { entries: entries.map(toEntryInfo) }));
    } else if (entries.length > 0) {
      const list = JSON.stringify(entries.map(toEntryJson));
      yield Buffer.from(separator + list.slice(1, -1), 'utf8');
      separator = ',';
    }
  }
  if (codec === 'json') yield Buffer.from(separator === ',' ? ']}' : '{}', 'utf8');
}
