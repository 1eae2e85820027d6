import type { Readable } from 'node:stream';

const MAX_TAIL = 4_096;

/**
 * Keeps the last words of an engine. The stream is always read, so the engine never waits for it, and holds no more than
 * a few kilobytes however much is written.
 */
export function keepTail(stream: Readable): { text(): string } {
  let tail = '';
  stream.on('data', (chunk: Buffer) => {
    tail = (tail + chunk.toString('utf8')).slice(-MAX_TAIL);
  });
  // A reset while the engine is killed says nothing that its end does not say.
  stream.on('error', () => undefined);
  return { text: () => tail.trim() };
}
