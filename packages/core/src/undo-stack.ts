import { callWithin } from './bounded-call.ts';
import type { Clock } from './clock.ts';
import { PlatformError } from './errors.ts';

export type UndoStep = () => Promise<void> | void;

/** The step that could not be undone; it and everything acquired before it are still held. */
export interface UndoFailure {
  readonly step: string;
  readonly error: PlatformError;
}

/**
 * What has to be released, in reverse order of how it was acquired. A step is registered **before** what it undoes is
 * attempted, so that an attempt that is cut off half-way is covered too.
 */
export interface UndoStack {
  /** Throws `canceled` once unwinding has begun: nothing may be acquired any more. */
  push(step: string, undo: UndoStep): void;
  /**
   * Undoes everything. Stops at a step that fails or does not answer within its deadline; another call goes on with that
   * step. Concurrent calls join.
   */
  unwind(): Promise<UndoFailure | undefined>;
  /** Whether a step of this name is still to be undone. */
  has(step: string): boolean;
  readonly size: number;
}

export function createUndoStack(deps: { readonly clock: Clock; readonly stepTimeoutMs: number }): UndoStack {
  const steps: { readonly step: string; readonly undo: UndoStep }[] = [];
  let closed = false;
  let unwinding: Promise<UndoFailure | undefined> | undefined;

  async function unwindSteps(): Promise<UndoFailure | undefined> {
    for (let top = steps.at(-1); top !== undefined; top = steps.at(-1)) {
      const { step, undo } = top;
      try {
        await callWithin(
          deps.clock,
          { what: `releasing ${step}`, timeoutMs: deps.stepTimeoutMs, graceMs: 0 },
          async () => await undo(),
        );
      } catch (error) {
        return { step, error: PlatformError.fromUnknown(error, `releasing ${step} failed`) };
      }
      steps.pop();
    }
    return undefined;
  }

  return {
    push(step, undo) {
      if (closed) throw new PlatformError('canceled', `${step} is not acquired any more: everything is being released`);
      steps.push({ step, undo });
    },
    unwind() {
      closed = true;
      unwinding ??= unwindSteps().finally(() => {
        unwinding = undefined;
      });
      return unwinding;
    },
    has: (name) => steps.some(({ step }) => step === name),
    get size() {
      return steps.length;
    },
  };
}
