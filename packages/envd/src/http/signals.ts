import type { ServerResponse } from 'node:http';
import { type Clock, PlatformError } from '@agentenv/core';

/** Aborts with `canceled` when the connection of an answer closes; after a finished answer that has no effect. */
export function signalOfAnswer(response: ServerResponse): AbortSignal {
  const controller = new AbortController();
  response.once('close', () => controller.abort(new PlatformError('canceled', 'the client went away')));
  return controller.signal;
}

/** Runs `work` with a signal that also aborts, with `deadline_exceeded`, after `milliseconds`. */
export async function withDeadline<T>(
  clock: Clock,
  milliseconds: number,
  parent: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  using _timer = clock.timer(milliseconds, () => {
    controller.abort(new PlatformError('deadline_exceeded', `the sandbox did not answer in ${milliseconds / 1000} s`));
  });
  return await work(parent === undefined ? controller.signal : AbortSignal.any([parent, controller.signal]));
}
