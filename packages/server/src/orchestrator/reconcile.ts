import { type CaptureId, type Clock, callWithin, deadlineAfter, type Log, type SandboxRecord } from '@agentenv/core';
import type { Backend, KnownInstance, RunningSandbox } from '@agentenv/runtime';
import type { CaptureStore, Ledger, SnapshotRepository } from '@agentenv/storage';
import type { SandboxHooks } from '../hooks/sandbox-hooks.ts';
import type { BackgroundWork } from './background-work.ts';
import { mapBounded } from './bounded-map.ts';

export interface ReconcileDependencies {
  readonly backend: Pick<Backend, 'reconcile'>;
  readonly ledger: Pick<Ledger, 'loadSandboxes' | 'putSandbox' | 'deleteSandbox'>;
  readonly captures: Pick<CaptureStore, 'list' | 'remove'>;
  /** Names the captures that are snapshots. */
  readonly snapshots: Pick<SnapshotRepository, 'captures'>;
  readonly hooks: Pick<SandboxHooks, 'callsFor'>;
  /** Tells that sandboxes are gone which had been ready once; resolves when that outlives this server. */
  readonly tellLost: (records: readonly SandboxRecord[]) => Promise<void>;
  /** What the start does not wait for. */
  readonly background: Pick<BackgroundWork, 'track'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly timeoutMs: number;
  readonly ledgerTimeoutMs: number;
}

/** What each sandbox may add to the time of a start, on a loaded host. */
const ADOPTION_MS = 2_000;

export interface Reconciled {
  /** Generations that were ended. */
  readonly ended: number;
  /** Sandboxes that are paused, as the ledger has them. */
  readonly paused: readonly SandboxRecord[];
  /** Sandboxes that go on where they were. */
  readonly running: readonly { readonly record: SandboxRecord; readonly generation: RunningSandbox }[];
}

/** Stops of generations that ended with their server, sent at the same time. */
const STOP_CONCURRENCY = 16;

/** States of the ledger in which a guest is there to stay: a snapshot or a fork of it is over, a pause never was. */
const RUNS: readonly SandboxRecord['state'][] = ['running', 'snapshotting', 'forking', 'pausing'];

/**
 * Puts in order what a former server of this host left, before anything else happens. What ran is adopted where the backend
 * can; every other generation is ended, whether the ledger knows it or not, and the custom extension is told. Then what was
 * paused stays, a resume that was not finished is rolled back to paused, and all other records go; in the end the captures
 * that no record of a sandbox or a snapshot names. In this order, so that a crash in between is repaired by the next start.
 * Throws when ledger or captures cannot be read or the backend cannot clean up.
 */
export async function reconcileAtStart(deps: ReconcileDependencies): Promise<Reconciled> {
  const { backend, captures, ledger, clock, log } = deps;
  const instanceOf = (record: SandboxRecord): KnownInstance => {
    const { afterStop } = deps.hooks.callsFor(record, 'resume');
    return {
      sandboxId: record.id,
      instanceId: record.instanceId,
      wanted: record.state === 'paused' ? 'running-unless-held' : RUNS.includes(record.state) ? 'running' : 'ended',
      identity: record.runtime,
      resources: record.resources,
      network: record.network,
      channelKey: Uint8Array.fromHex(record.channelKey),
      ...(afterStop === undefined ? {} : { afterStop }),
    };
  };
  /** Its pause was undone, which the ledger did not take: when its time was to pass is lost, so it gets that anew. */
  const takenBack = (record: SandboxRecord): SandboxRecord => ({
    ...record,
    state: 'running',
    deadline: deadlineAfter(clock.now(), record.timeoutSeconds),
  });
  /** Before their records go: the next start tells of them again when this server dies in between. */
  const tellLost = async (lost: readonly SandboxRecord[]): Promise<void> => {
    if (lost.length === 0) return;
    const eventBounds = { what: 'the journal of events', timeoutMs: deps.ledgerTimeoutMs, graceMs: 0 };
    try {
      await callWithin(clock, eventBounds, () => deps.tellLost(lost));
    } catch (error) {
      // Events are no reason not to start.
      log.error({ err: error }, 'the loss of sandboxes may not be told after another crash');
    }
  };
  const ledgerBounds = { what: 'the ledger', timeoutMs: deps.ledgerTimeoutMs, graceMs: 0 };
  const bounds = { what: 'cleaning up after a former server', timeoutMs: deps.timeoutMs, graceMs: 0 };
  const { records, unreadable } = await callWithin(clock, ledgerBounds, () => ledger.loadSandboxes());
  const stored = await callWithin(clock, bounds, () => captures.list());
  const known = records.map(instanceOf);
  const adoption = { ...bounds, timeoutMs: deps.timeoutMs + ADOPTION_MS * records.length };
  const { ended, endedKnown, adopted } = await callWithin(clock, adoption, () => backend.reconcile(known));

  // The stop of one that held no engine is due only when something of it was still there: it comes before its slot goes.
  const stops = records.filter(({ state, instanceId, engineGone }) =>
    state === 'paused' || (state === 'killing' && engineGone === true)
      ? endedKnown.includes(instanceId)
      : !adopted.some((generation) => generation.instanceId === instanceId),
  );
  void deps.background.track(
    mapBounded(stops, STOP_CONCURRENCY, async (record) => await deps.hooks.callsFor(record, 'resume').afterStop?.()),
  );

  const generations = new Map(adopted.map((generation) => [generation.instanceId, generation]));
  const running: Reconciled['running'][number][] = [];
  const paused: SandboxRecord[] = [];
  const over: SandboxRecord[] = [];
  for (const record of records) {
    const generation = generations.get(record.instanceId);
    if (generation !== undefined) {
      running.push({
        record: record.state === 'paused' ? takenBack(record) : { ...record, state: 'running' },
        generation,
      });
      continue;
    }
    const keep = record.state === 'paused' || record.state === 'resuming';
    if (keep && record.capture !== undefined) paused.push({ ...record, state: 'paused', runtime: undefined });
    else over.push(record);
    if (keep && record.capture === undefined) {
      log.error({ sandboxId: record.id }, 'a paused sandbox is lost: its record names no capture');
    } else if (keep && !stored.has(record.capture ?? '')) {
      // Perhaps the disk it lies on is not mounted: the record waits for it, and for whoever kills the sandbox.
      log.error({ sandboxId: record.id }, 'a paused sandbox cannot be resumed: its capture is not there');
    }
  }
  const inState = (wanted: SandboxRecord['state']) =>
    new Set(records.filter(({ state }) => state === wanted).map(({ id }) => id));
  const former = { resuming: inState('resuming'), paused: inState('paused') };
  await tellLost(over.filter(({ state }) => state !== 'creating'));
  await callWithin(clock, ledgerBounds, async () => {
    await Promise.all([
      ...paused.filter(({ id }) => former.resuming.has(id)).map((record) => ledger.putSandbox(record)),
      ...running.filter(({ record: { id } }) => former.paused.has(id)).map(({ record }) => ledger.putSandbox(record)),
      ...over.map(({ id }) => ledger.deleteSandbox(id)),
    ]);
  });
  const needed = new Set<string | undefined>(
    [...paused, ...running.map(({ record }) => record)].map(({ capture }) => capture),
  );
  const snapshots = deps.snapshots.captures();
  const unnamed = [...stored].filter((name) => !needed.has(name) && !snapshots.has(name));
  // A record that cannot be read may name any of them.
  const orphans = unreadable.length === 0 ? unnamed : [];
  if (unreadable.length > 0 && unnamed.length > 0) {
    log.error(
      { records: unreadable, captures: unnamed },
      'captures are kept that a record which cannot be read may name',
    );
  }
  await callWithin(clock, bounds, async () => {
    for (const name of orphans) await captures.remove(name as CaptureId);
  });
  if (ended > 0 || over.length > 0 || orphans.length > 0) {
    const counts = { records: over.length, ended, captures: orphans.length };
    log.warn(counts, 'ended what a former server of this host left behind');
  }
  if (paused.length > 0) log.info({ sandboxes: paused.length }, 'paused sandboxes of a former server are here');
  if (running.length > 0) log.info({ sandboxes: running.length }, 'sandboxes of a former server run on');
  return { ended, paused, running };
}
