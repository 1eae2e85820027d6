import { join, resolve } from 'node:path';
import { startServer, type TestServer } from '../../e2e/lib/server.ts';

export { NO_POOL } from '../../e2e/lib/server.ts';

/** What set-up built. */
export const ARTIFACTS = join(resolve(import.meta.dirname, '../..'), '.aenv/artifacts');

/** A server for one bench; `config` is TOML. */
export function benchServer(config = ''): Promise<TestServer> {
  return startServer({ config });
}

/** Milliseconds `run` takes. */
export async function timed<T>(run: () => Promise<T>): Promise<{ readonly value: T; readonly ms: number }> {
  const start = performance.now();
  const value = await run();
  return { value, ms: performance.now() - start };
}

/** `run` once per sample, one after another. */
export async function repeat(samples: number, run: (index: number) => Promise<number>): Promise<number[]> {
  const values: number[] = [];
  for (let index = 0; index < samples; index++) values.push(await run(index));
  return values;
}
