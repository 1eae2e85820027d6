import { type CaptureId, type Clock, callWithin, type Log, PlatformError, type UuidSource } from '@agentenv/core';
import type { CaptureStore } from '@agentenv/storage';
import { answerToCaller } from '../hooks/failure.ts';
import { createBackgroundWork } from './background-work.ts';
import { mapBounded } from './bounded-map.ts';
import type { OrchestratorConfig } from './config.ts';
import type { Creation } from './creation.ts';
import { isDeliberate } from './launch-failure.ts';
import type { CaptureDraft, LiveCapture } from './live-capture.ts';
import type { ForkRequest, ForkResult } from './orchestrator.ts';
import { requireDuration } from './requirements.ts';

/** Starts copies of running sandboxes. */
export interface Forking {
  /**
   * Captures the sandbox once and starts `count` children of it at the same time, each with a place of its own on the host:
   * one that finds none, or fails, takes nothing from its siblings. Resolves with exactly `count` results in order;
   * rejects when nothing was captured. Work survives the caller and, once it is captured, the source.
   */
  fork(id: string, request: ForkRequest): Promise<readonly ForkResult[]>;
  /** Resolves when nothing is under way any more. */
  settled(): Promise<void>;
}

export interface ForkingDependencies {
  readonly liveCapture: LiveCapture;
  readonly creation: Pick<Creation, 'createChild' | 'countFailures'>;
  readonly captures: Pick<CaptureStore, 'allocate' | 'remove'>;
  readonly ids: Pick<UuidSource, 'captureId'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly config: Pick<OrchestratorConfig, 'forkConcurrency' | 'ledgerTimeoutMs' | 'releaseTimeoutMs'>;
  /** Throws `unavailable` once the server shuts down. */
  readonly refuseWhileClosing: () => void;
}

/** Refusals of the matrix: nothing was tried, so nothing failed. */
const REFUSALS: ReadonlySet<PlatformError['code']> = new Set(['not_found', 'conflict']);

export function createForking(deps: ForkingDependencies): Forking {
  const { captures, clock, config, log } = deps;
  const background = createBackgroundWork();

  /** The capture of a fork is in no record: what a crash leaves of it is removed by the next start. */
  async function begin(): Promise<CaptureDraft> {
    const id: CaptureId = deps.ids.captureId();
    const bounds = { what: 'the data disk', timeoutMs: config.ledgerTimeoutMs, graceMs: 0 };
    const directory = await callWithin(clock, bounds, () => captures.allocate(id));
    return {
      directory,
      async [Symbol.asyncDispose]() {
        try {
          await callWithin(clock, { ...bounds, timeoutMs: config.releaseTimeoutMs }, () => captures.remove(id));
        } catch (error) {
          log.warn({ capture: id, err: error }, 'the capture of a fork could not be removed; the next start does it');
        }
      },
    };
  }

  async function capture(id: string, count: number): ReturnType<typeof deps.liveCapture<CaptureDraft>> {
    try {
      return await deps.liveCapture(id, 'fork', begin);
    } catch (error) {
      const { code } = PlatformError.fromUnknown(error);
      if (!REFUSALS.has(code) && !isDeliberate(error)) deps.creation.countFailures(code, count);
      throw error;
    }
  }

  async function fork(id: string, { count, timeoutSeconds }: ForkRequest): Promise<readonly ForkResult[]> {
    // Children have names of their own for the files they run on, so the capture goes when the last one has started.
    await using captured = await capture(id, count);
    const children = Array.from({ length: count }, (_, index) => index);
    const outcomes = await mapBounded(children, config.forkConcurrency, () =>
      deps.creation.createChild(captured, timeoutSeconds),
    );
    return outcomes.map((outcome) =>
      outcome.status === 'fulfilled'
        ? { kind: 'started', record: outcome.value }
        : { kind: 'failed', error: PlatformError.fromUnknown(answerToCaller('fork', outcome.reason)) },
    );
  }

  return {
    async fork(id, request) {
      deps.refuseWhileClosing();
      requireDuration('timeout', request.timeoutSeconds);
      return await background.track(fork(id, request));
    },
    settled: background.settled,
  };
}
