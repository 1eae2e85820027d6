import { PlatformError, shorten } from '@agentenv/core';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Operation } from './document.ts';

interface KnownPath {
  readonly pattern: RegExp;
  readonly allow: string;
}

/** Longest path shown in a message, characters. */
const MAX_SHOWN_PATH = 200;

/**
 * What to say about a request no route takes: 405 with `Allow` if the path has other methods, else 404 naming method
 * and path. Runs only for such requests, so a scan over the paths of the document is enough.
 */
export function createNotFound(operations: readonly Operation[]) {
  const known = knownPaths(operations);
  return (request: FastifyRequest, reply: FastifyReply): PlatformError => {
    const path = request.url.split('?', 1)[0] ?? '';
    const shown = shorten(path, MAX_SHOWN_PATH);
    const match = known.find(({ pattern }) => pattern.test(path));
    if (match === undefined) return new PlatformError('not_found', `no route for ${request.method} ${shown}`);
    reply.header('allow', match.allow);
    return new PlatformError('method_not_allowed', `${shown} does not take ${request.method}, only ${match.allow}`);
  };
}

function knownPaths(operations: readonly Operation[]): readonly KnownPath[] {
  const methods = new Map<string, string[]>();
  for (const { path, method } of operations) {
    const list = methods.get(path) ?? [];
    list.push(...(method === 'GET' ? ['GET', 'HEAD'] : [method]));
    methods.set(path, list);
  }
  return (
    [...methods]
      // Literal segments win over placeholders, as in the router.
      .toSorted(([left], [right]) => placeholders(left) - placeholders(right))
      .map(([path, list]) => ({
        pattern: new RegExp(`^${path.replaceAll(/\{\w+\}/g, '[^/]+')}$`),
        allow: [...list, 'OPTIONS'].join(', '),
      }))
  );
}

function placeholders(path: string): number {
  return path.split('{').length;
}
