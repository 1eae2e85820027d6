import { type Clock, PlatformError } from '@agentenv/core';

/** Where a fake backend can be made to fail. `start`: before an engine exists; `activate`: after. */
export type FaultPoint = 'prepare' | 'start' | 'activate' | 'capture' | 'release' | 'network' | 'stop';

export type FaultEffect =
  | { readonly kind: 'fail'; readonly error?: PlatformError }
  /** Until `release` of the fault, or the caller's signal. */
  | { readonly kind: 'hang' }
  | { readonly kind: 'slow'; readonly milliseconds: number };

export interface Fault {
  /** Resolves when the backend ran into it. */
  readonly hit: Promise<void>;
  /** Lets a hanging call go on. */
  release(): void;
}

export interface Faults {
  /** The next call that passes `point` suffers `effect`; several queue up. */
  next(point: FaultPoint, effect: FaultEffect): Fault;
  /** Called by the backend. */
  pass(point: FaultPoint, signal?: AbortSignal): Promise<void>;
}

interface Planned {
  readonly effect: FaultEffect;
  readonly hit: PromiseWithResolvers<void>;
  readonly released: PromiseWithResolvers<void>;
}

/** Failures planned by a test, each used once, in order. */
export function createFaults(clock: Clock): Faults {
  const planned = new Map<FaultPoint, Planned[]>();

  async function suffer({ effect, released }: Planned, point: FaultPoint, signal?: AbortSignal): Promise<void> {
    if (effect.kind === 'fail')
      throw effect.error ?? new PlatformError('create_failed', `injected failure at ${point}`);
    const aborted = Promise.withResolvers<never>();
    const onAbort = () => aborted.reject(signal?.reason);
    signal?.addEventListener('abort', onAbort, { once: true });
    const timer = effect.kind === 'slow' ? clock.timer(effect.milliseconds, released.resolve) : undefined;
    try {
      await Promise.race([released.promise, aborted.promise]);
    } finally {
      timer?.[Symbol.dispose]();
      signal?.removeEventListener('abort', onAbort);
    }
  }

  return {
    next(point, effect) {
      const entry: Planned = { effect, hit: Promise.withResolvers(), released: Promise.withResolvers() };
      planned.set(point, [...(planned.get(point) ?? []), entry]);
      return { hit: entry.hit.promise, release: entry.released.resolve };
    },
    async pass(point, signal) {
      signal?.throwIfAborted();
      const entry = planned.get(point)?.shift();
      if (entry === undefined) return;
      entry.hit.resolve();
      await suffer(entry, point, signal);
    },
  };
}
