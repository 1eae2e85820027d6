import { type Clock, callWithin } from '@agentenv/core';
import type { RunningSandbox } from '@agentenv/runtime';

/**
 * The start of one engine, covered from the first moment: `stop` ends whatever the start has made or will still make, also
 * when the start was left behind at its deadline and finishes later.
 */
export interface EngineStart {
  run(start: (signal: AbortSignal) => Promise<RunningSandbox>): Promise<RunningSandbox>;
  stop(): Promise<void>;
}

export interface EngineStartBounds {
  readonly timeoutMs: number;
  readonly graceMs: number;
  readonly signal: AbortSignal;
}

export function createEngineStart(clock: Clock, bounds: EngineStartBounds): EngineStart {
  /** Settles with the start itself, however late; undefined when it made nothing. */
  let made: Promise<RunningSandbox | undefined> = Promise.resolve(undefined);
  return {
    run: (start) =>
      callWithin(clock, { what: 'the engine', ...bounds }, (signal) => {
        const starting = start(signal);
        // Its failure reaches the caller of run; here only what is left to stop matters.
        made = starting.catch(() => undefined);
        return starting;
      }),
    async stop() {
      const running = await made;
      await running?.stop();
    },
  };
}
