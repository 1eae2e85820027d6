import { setTimeout as delay } from 'node:timers/promises';

/** Polls `condition` until it is truthy and returns that value; fails after `timeout` ms saying what it waited for. */
export async function waitUntil<T>(
  condition: () => T | Promise<T>,
  options: { readonly timeout: number; readonly what: string | (() => string); readonly interval?: number },
): Promise<NonNullable<T>> {
  const deadline = performance.now() + options.timeout;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > deadline) {
      const what = typeof options.what === 'string' ? options.what : options.what();
      throw new Error(`timed out after ${options.timeout} ms waiting for ${what}`);
    }
    await delay(options.interval ?? 20);
  }
}
