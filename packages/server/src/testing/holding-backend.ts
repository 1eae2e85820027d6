import type { Backend, RunningSandbox } from '@agentenv/runtime';
import { override } from './override.ts';
import type { HeldCall, MatrixStage } from './state-matrix.ts';

type Call = Parameters<MatrixStage['hold']>[0];

/** A backend whose next call of a kind can be told to wait before it does anything. */
export interface HoldingBackend {
  readonly wrap: (backend: Backend) => Backend;
  readonly hold: MatrixStage['hold'];
}

export function createHoldingBackend(): HoldingBackend {
  const held = new Map<Call, { readonly hit: () => void; readonly released: Promise<void> }>();

  /** Rejects when the call is aborted meanwhile. */
  async function pass(call: Call, signal?: AbortSignal): Promise<void> {
    const next = held.get(call);
    if (next === undefined) return;
    held.delete(call);
    next.hit();
    const { promise, reject } = Promise.withResolvers<never>();
    signal?.addEventListener('abort', () => reject(signal.reason), { once: true });
    await Promise.race([next.released, promise]);
  }

  function holding(running: RunningSandbox): RunningSandbox {
    return override(running, {
      async capture(directory, signal) {
        await pass('capture', signal);
        return running.capture(directory, signal);
      },
      async captureDisk(directory, signal) {
        await pass('capture', signal);
        return running.captureDisk(directory, signal);
      },
      async snapshot(directory, signal) {
        await pass('capture', signal);
        return running.snapshot(directory, signal);
      },
      async stop() {
        await pass('stop');
        await running.stop();
      },
    });
  }

  return {
    wrap: (backend) =>
      override(backend, {
        async boot(snapshot, plan, signal) {
          await pass('start', signal);
          return holding(await backend.boot(snapshot, plan, signal));
        },
        async restore(snapshot, plan, signal) {
          await pass('start', signal);
          return holding(await backend.restore(snapshot, plan, signal));
        },
      }),
    hold(call): HeldCall {
      const hit = Promise.withResolvers<void>();
      const released = Promise.withResolvers<void>();
      held.set(call, { hit: hit.resolve, released: released.promise });
      return { hit: hit.promise, release: released.resolve };
    },
  };
}
