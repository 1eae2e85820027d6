import { PlatformError } from '@agentenv/core';
import type { LiveSlot, SlotCalls, StartAdvice } from './backend.ts';

/** Keeps the calls about one slot in order: `beforeStart` at most once, then `afterStop` exactly once. */
export interface SlotVisit {
  /** What `calls.beforeStart` answers, or nothing when there is none. */
  begin(calls: SlotCalls, slot: LiveSlot, signal: AbortSignal): Promise<StartAdvice>;
  /** Takes over a slot whose `beforeStart` a former server has called. */
  takeOver(calls: Pick<SlotCalls, 'afterStop'>): void;
  /** To be called when the engine is gone and the slot is not given back yet. Concurrent and later calls join. */
  end(): Promise<void>;
}

export function createSlotVisit(): SlotVisit {
  let begun: Pick<SlotCalls, 'afterStop'> | undefined;
  let ended: Promise<void> | undefined;
  return {
    async begin(calls, { networkNamespacePath, hostInteractionIp }, signal) {
      if (calls.beforeStart === undefined) return {};
      if (begun !== undefined || ended !== undefined) {
        throw new PlatformError('internal', 'a network slot is prepared for a second generation');
      }
      begun = calls;
      return await calls.beforeStart({ networkNamespacePath, hostInteractionIp }, signal);
    },
    takeOver(calls) {
      begun = calls;
    },
    end() {
      ended ??= Promise.resolve(begun?.afterStop?.());
      return ended;
    },
  };
}
