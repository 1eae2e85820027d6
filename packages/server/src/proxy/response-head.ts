import type { IncomingMessage } from 'node:http';
import { forEachHeader, HOP_BY_HOP, nominatedBy } from './header-fields.ts';

/**
 * The headers of an answer of the sandbox as the client gets them: in their order and spelling, without what belongs to
 * the connection inside. `announcesTrailers`: whether the client's side of the answer can have trailers.
 */
export function responseHead(answer: IncomingMessage, announcesTrailers: boolean): string[] {
  const nominated = nominatedBy(answer.headers.connection);
  const head: string[] = [];
  forEachHeader(answer.rawHeaders, (name, value, lower) => {
    if (HOP_BY_HOP.has(lower) || nominated.has(lower)) return;
    if (lower === 'trailer' && !announcesTrailers) return;
    head.push(name, value);
  });
  return head;
}
