import type { Agent, SpawnRequest } from '@agentenv/agent';
import { type Clock, type Log, PlatformError, type SandboxJournal } from '@agentenv/core';
import type { ProcessSelector } from '@agentenv/protocol/process';
import { withDeadline } from '../http/signals.ts';
import { decodeDescription, encodeDescription } from './description.ts';
import { createOutputHub } from './output-hub.ts';
import { tellProcess } from './process-journal.ts';
import { createProcessRecord, type ProcessDescription, type ProcessRecord } from './process-record.ts';
import type { Subscriber } from './subscriber.ts';

/** Processes that may run at once in one sandbox. */
const MAX_RUNNING = 4096;
/** How long an ended process can still be connected to, milliseconds (contract e2b.md section 9.2, semantics 9). */
const REMEMBER_MS = 30_000;
/** Ended processes kept at most, however young. */
const MAX_REMEMBERED = 4096;
/** Longest wait for the guest to start a program or to list its processes, milliseconds. */
const GUEST_CALL_MS = 30_000;

/** What the agent needs to start a process, beside its description. */
export type SpawnPlan = Omit<SpawnRequest, 'tag' | 'config'>;

/** The processes of one generation. */
export interface ProcessTable extends Disposable {
  /** Starts a process with a first subscriber that misses nothing. It goes on whatever becomes of the caller. */
  start(
    plan: SpawnPlan,
    description: ProcessDescription,
  ): Promise<{ readonly record: ProcessRecord; readonly subscriber: Subscriber }>;
  /** Those that were not reaped yet. */
  list(): Promise<readonly ProcessRecord[]>;
  /** `any` also finds those that ended a short time ago. Throws `not_found`, and `invalid_argument` without a selector. */
  find(selector: ProcessSelector | undefined, among: 'live' | 'any'): Promise<ProcessRecord>;
}

export function createProcessTable(deps: {
  readonly agent: Pick<Agent, 'spawn' | 'listProcesses'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly journal: SandboxJournal;
}): ProcessTable {
  const { agent, clock, log } = deps;
  /** In the order they were started; the last of a pid or tag counts. */
  const records = new Set<ProcessRecord>();
  const timers = new Set<Disposable>();
  let starting = 0;

  function keep(record: ProcessRecord): void {
    records.add(record);
    // The promise never rejects.
    void record.ended.then(() => forgetLater(record));
  }

  function forgetLater(record: ProcessRecord): void {
    const timer = clock.timer(REMEMBER_MS, () => {
      timers.delete(timer);
      records.delete(record);
    });
    timers.add(timer);
    let remembered = 0;
    for (const { state } of records) if (state === 'ended') remembered++;
    for (const old of records) {
      if (remembered <= MAX_REMEMBERED) break;
      if (old.state !== 'ended') continue;
      records.delete(old);
      remembered--;
    }
  }

  /**
   * Processes a former server started. Those without a description are not ours: the backend runs some to warm a
   * machine up, and reads their output itself.
   */
  async function load(): Promise<void> {
    const guests = await withDeadline(clock, GUEST_CALL_MS, undefined, (signal) => agent.listProcesses(signal));
    const described = guests.filter(({ config }) => config.length > 0);
    for (const guest of described) keep(createProcessRecord(guest, decodeDescription(guest, log), createOutputHub()));
  }

  const loaded = load();
  // Told to whoever asks for a process; nobody asking is no reason to end the server.
  loaded.catch(() => undefined);

  function running(): number {
    let count = starting;
    for (const { state } of records) if (state === 'running') count++;
    return count;
  }

  return {
    async start(plan, description) {
      await loaded;
      if (running() >= MAX_RUNNING) {
        throw new PlatformError('capacity', `${MAX_RUNNING} processes run in this sandbox, the limit`);
      }
      starting++;
      try {
        const config = encodeDescription(description);
        const guest = await withDeadline(clock, GUEST_CALL_MS, undefined, (signal) =>
          agent.spawn({ ...plan, tag: description.tag ?? '', config }, signal),
        );
        const hub = createOutputHub();
        const subscriber = hub.subscribe();
        const record = createProcessRecord(guest, description, hub);
        keep(record);
        tellProcess(deps, record, plan.user);
        return { record, subscriber };
      } finally {
        starting--;
      }
    },
    async list() {
      await loaded;
      return [...records].filter(({ state }) => state === 'running');
    },
    async find(selector, among) {
      await loaded;
      const wanted = selector?.selector;
      if (wanted?.case === undefined)
        throw new PlatformError('invalid_argument', 'process: a pid or a tag is required');
      let found: ProcessRecord | undefined;
      for (const record of records) {
        if (among === 'live' && record.state === 'ended') continue;
        if (wanted.case === 'pid' ? record.pid !== wanted.value : record.tag !== wanted.value) continue;
        // A running one wins over one that ended, whichever is younger.
        if (found === undefined || record.state !== 'ended' || found.state === 'ended') found = record;
      }
      if (found === undefined) {
        throw new PlatformError('not_found', `process with ${wanted.case} '${wanted.value}' not found`);
      }
      return found;
    },
    [Symbol.dispose]() {
      for (const timer of timers) timer[Symbol.dispose]();
      timers.clear();
      records.clear();
    },
  };
}
