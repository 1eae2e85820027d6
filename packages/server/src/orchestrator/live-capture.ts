import { type Clock, callWithin, type KeyedQueue, type Log, PlatformError, type SandboxRecord } from '@agentenv/core';
import type { CapturedSnapshot, RunningSandbox, RuntimeEnd, StoredSnapshot } from '@agentenv/runtime';
import type { StageMetrics } from '../observability/metrics.ts';
import type { OrchestratorConfig } from './config.ts';
import type { Ending } from './ending.ts';
import { toShownFailure } from './launch-failure.ts';
import type { LifecycleMetrics } from './lifecycle-metrics.ts';
import type { OwnerLog } from './owner-log.ts';
import { type SandboxAccess, sandboxConflict } from './sandbox-access.ts';
import type { SandboxEntry, SandboxTable } from './sandbox-table.ts';
import { createStages } from './stages.ts';

/** Where a capture goes. Disposing removes what is there and nobody needs; it never rejects. */
export interface CaptureDraft extends AsyncDisposable {
  /** Empty. */
  readonly directory: string;
}

/** A complete capture of a sandbox that went on, or has ended since. It belongs to whoever took it and disposes it. */
export interface HeldCapture<Draft extends CaptureDraft = CaptureDraft> extends AsyncDisposable {
  /** The sandbox as it was when it was captured. */
  readonly source: SandboxRecord;
  readonly draft: Draft;
  /** May be linked from and restored from until this is disposed. */
  readonly snapshot: StoredSnapshot;
}

/**
 * Captures a running sandbox in place, as a step of its own queue: running → snapshotting or forking → running. Its clients
 * notice nothing but a short halt; its streams, its timeout and its ledger record go on as they were. `begin` makes the
 * place for it, when the sandbox's turn has come; it has a deadline of its own.
 *
 * The step ends with the capture: what is made of it (a publication, children) happens outside, and a kill of the source
 * changes nothing about it any more. Until then a kill aborts it, and the draft is disposed: `killed`. Not running:
 * `conflict` naming the state; unknown: `not_found`. When the capture fails the sandbox runs on, unless its guest cannot:
 * then it ends. A timeout that fires meanwhile is obeyed afterwards. Work survives the caller.
 */
export type LiveCapture = <Draft extends CaptureDraft>(
  id: string,
  operation: 'snapshot' | 'fork',
  begin: () => Promise<Draft>,
) => Promise<HeldCapture<Draft>>;

export interface LiveCaptureDependencies {
  readonly table: SandboxTable;
  readonly access: SandboxAccess;
  readonly queue: KeyedQueue;
  readonly ending: Ending;
  readonly clock: Clock;
  readonly log: Log;
  readonly owner: Pick<OwnerLog, 'captured' | 'captureFailed'>;
  readonly stages: StageMetrics;
  readonly metrics: Pick<LifecycleMetrics, 'liveCaptureSucceeded' | 'liveCaptureFailed'>;
  readonly config: Pick<OrchestratorConfig, 'captureTimeoutMs' | 'killGraceMs'>;
}

/** What one attempt has come to. */
interface Attempt {
  readonly running: RunningSandbox;
  /** `unknown`: a capture is under way, or was left behind in the middle of it. */
  guest: 'running' | 'unknown' | 'lost';
  /** Settles when the backend is done with the capture, however late. */
  settled: Promise<unknown>;
  /** Set when the engine or its guest is gone. */
  end: RuntimeEnd | undefined;
}

const FAILED = 'the sandbox could not be captured';

export function createLiveCapture(deps: LiveCaptureDependencies): LiveCapture {
  const { clock, config, log, table } = deps;

  /** Follows the engine: a capture of one that is gone must not be waited for. */
  function watch(attempt: Attempt): AbortSignal {
    const gone = new AbortController();
    void attempt.running.ended.then((end) => {
      attempt.end = end;
      gone.abort(new PlatformError('internal', `the sandbox ended while it was captured: ${end.reason}`));
    });
    return gone.signal;
  }

  async function capture(attempt: Attempt, directory: string, signal: AbortSignal): Promise<CapturedSnapshot> {
    const bounds = {
      what: 'the capture',
      timeoutMs: config.captureTimeoutMs,
      graceMs: config.killGraceMs,
      signal: AbortSignal.any([signal, watch(attempt)]),
    };
    return await callWithin(clock, bounds, async (aborted) => {
      attempt.guest = 'unknown';
      const capturing = attempt.running.snapshot(directory, aborted);
      attempt.settled = capturing.catch(() => undefined);
      try {
        const captured = await capturing;
        attempt.guest = 'running';
        return captured;
      } catch (error) {
        attempt.guest = PlatformError.fromUnknown(error).code === 'sandbox_unavailable' ? 'lost' : 'running';
        throw error;
      }
    });
  }

  function hold<Draft extends CaptureDraft>(
    source: SandboxRecord,
    draft: Draft,
    captured: CapturedSnapshot,
  ): HeldCapture<Draft> {
    return {
      source,
      draft,
      snapshot: { directory: draft.directory, manifest: captured.manifest },
      async [Symbol.asyncDispose]() {
        try {
          await captured.release();
        } catch (error) {
          // Nothing but the backend's own bookkeeping.
          log.warn({ sandboxId: source.id, err: error }, 'the backend did not let go of a capture');
        }
        await draft[Symbol.asyncDispose]();
      },
    };
  }

  /** What a failed or aborted capture left goes: at once, or when a backend that does not react is done with it. */
  async function discard(attempt: Attempt, draft: CaptureDraft | undefined): Promise<void> {
    if (draft === undefined) return;
    const discarded = attempt.settled.then(() => draft[Symbol.asyncDispose]());
    if (attempt.guest !== 'unknown') await discarded;
  }

  /** After a failure: the sandbox runs on as if nothing had been, or it ends because it cannot. */
  async function recover(entry: SandboxEntry, { end, guest }: Attempt, failure: PlatformError): Promise<void> {
    if (end === undefined && guest === 'running') {
      table.move(entry, 'capture-refused');
      return;
    }
    const cause =
      end === undefined
        ? ({ event: 'capture-lost', reason: 'capture-lost', detail: 'its guest was lost in a failed capture' } as const)
        : ({ event: 'runtime-ended', reason: end.reason, detail: end.detail } as const);
    // A release that fails is logged and tried again; the client learns why the capture failed.
    await deps.ending.endFromWithin(entry, { ...cause, error: failure }).catch(() => undefined);
  }

  /** Hands the capture over by `keep`, in the same turn as it becomes final. */
  async function step<Draft extends CaptureDraft>(
    entry: SandboxEntry,
    operation: 'snapshot' | 'fork',
    begin: () => Promise<Draft>,
    keep: (held: HeldCapture<Draft>) => void,
    signal: AbortSignal,
  ): Promise<void> {
    const { generation, record: source } = entry;
    if (generation === undefined) throw new PlatformError('internal', 'a sandbox that runs has no generation');
    if (table.move(entry, operation) === undefined) throw sandboxConflict(source);
    const attempt: Attempt = {
      ...{ running: generation.running, guest: 'running', settled: Promise.resolve(), end: undefined },
    };
    const staged = createStages(deps.stages, operation, entry, signal);
    let draft: Draft | undefined;
    try {
      const { directory } = await staged('allocate', async () => {
        draft = await begin();
        return draft;
      });
      const captured = await staged('capture', () => capture(attempt, directory, signal));
      signal.throwIfAborted();
      if (draft !== undefined) keep(hold(source, draft, captured));
    } catch (error) {
      await discard(attempt, draft);
      // Whoever aborted it releases everything else.
      if (signal.aborted) throw signal.reason;
      const failure = toShownFailure(error, 'internal', FAILED);
      deps.metrics.liveCaptureFailed(operation, failure.code);
      deps.owner.captureFailed(source.id, operation, entry.stage, failure.code);
      log.error({ sandboxId: source.id, operation, stage: entry.stage, err: error }, FAILED);
      await recover(entry, attempt, failure);
      throw failure;
    }
    deps.metrics.liveCaptureSucceeded(operation);
    deps.owner.captured(source.id, operation);
    if (attempt.end === undefined) {
      table.move(entry, 'captured');
      return;
    }
    const { reason, detail } = attempt.end;
    const error = new PlatformError('internal', `the sandbox ended after it was captured: ${reason}`);
    await deps.ending.endFromWithin(entry, { event: 'runtime-ended', reason, detail, error }).catch(() => undefined);
  }

  return async <Draft extends CaptureDraft>(
    id: string,
    operation: 'snapshot' | 'fork',
    begin: () => Promise<Draft>,
  ): Promise<HeldCapture<Draft>> => {
    deps.access.allowed(id, operation);
    const kept: HeldCapture<Draft>[] = [];
    try {
      await deps.queue.run(id, operation, (signal) =>
        step(deps.access.allowed(id, operation), operation, begin, (held) => kept.push(held), signal),
      );
    } catch (error) {
      // A kill that came when the capture was final already changes nothing about it.
      if (kept[0] === undefined) throw error;
    }
    const [held] = kept;
    if (held === undefined) throw new PlatformError('internal', 'a capture ended without a result');
    return held;
  };
}
