import { createHash } from 'node:crypto';
import {
  applyEvent,
  type CaptureId,
  type Clock,
  createSandboxIndex,
  type Log,
  PlatformError,
  SANDBOX_STATES,
  type SandboxEvent,
  type SandboxPage,
  type SandboxQuery,
  type SandboxRecord,
  type SandboxState,
  type Transition,
  type UndoStack,
} from '@agentenv/core';
import type { EnvdService } from '@agentenv/envd';
import type { RunningSandbox } from '@agentenv/runtime';
import type { LifecycleMetrics } from './lifecycle-metrics.ts';
import type { OwnedSocketGroup } from './socket-group.ts';

/** One runtime instance of a sandbox, as the data plane uses it. */
export interface Generation {
  readonly running: RunningSandbox;
  readonly envd: EnvdService;
  readonly sockets: OwnedSocketGroup;
  /** The sampling of what it uses. */
  readonly sampling: Disposable;
}

/** How the engine is called among what a generation holds. */
export const ENGINE = 'engine';

/** A sandbox this server is responsible for. Its record changes through the table only. */
export interface SandboxEntry {
  readonly record: SandboxRecord;
  /** What there is of it whether it runs or not: its ledger record and its captures. */
  readonly undo: UndoStack;
  /** What its present generation holds: a place on the host, an engine, a guest API. A paused one holds nothing. */
  held: UndoStack;
  /** Every capture of it that may be on disk, complete or not. */
  readonly captures: Set<CaptureId>;
  /** How often in a row its timeout could not pause it. */
  failedPauses: number;
  /** Published when the guest answers. */
  generation: Generation | undefined;
  /** What its running step is doing, for logs and errors. */
  stage: string;
  /** Tells of its end; set from its kill until it has been told. */
  farewell: (() => void) | undefined;
  /** Set by its kill; settles when the ledger knows of it, or does not answer. */
  noted: Promise<void> | undefined;
  /** Under way when it is being released. */
  ending: Promise<void> | undefined;
  /** Set while a failed release waits for its next attempt. */
  retry: { readonly timer: Disposable; readonly attempt: number } | undefined;
}

export interface SandboxTable extends Disposable {
  readonly size: number;
  add(record: SandboxRecord, belongings: Pick<SandboxEntry, 'undo' | 'held' | 'captures'>): SandboxEntry;
  get(id: string): SandboxEntry | undefined;
  findByAccessToken(token: string): SandboxEntry | undefined;
  all(): readonly SandboxEntry[];
  page(query: SandboxQuery): SandboxPage;
  /**
   * Applies an event; undefined when it means nothing in this state. Arms the watchdog of the state it enters and forgets
   * the entry when it is gone.
   */
  move(entry: SandboxEntry, event: SandboxEvent): Transition | undefined;
  /** Replaces everything about the record but its state. */
  update(entry: SandboxEntry, record: SandboxRecord): void;
  countByState(): Readonly<Record<SandboxState, number>>;
  /** Resources of all sandboxes in these states, as their templates have them. */
  allocated(counts: (state: SandboxState) => boolean): Allocation;
}

/** Virtual CPUs and memory of several sandboxes together. */
export interface Allocation {
  readonly vcpus: number;
  /** MiB. */
  readonly memoryMB: number;
}

export interface SandboxTableDependencies {
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Pick<LifecycleMetrics, 'overdue'>;
  /** The envd token of a sandbox; it never changes. */
  readonly accessToken: (record: SandboxRecord) => string | undefined;
  /** How long a sandbox may be in a state that is meant to pass, milliseconds. */
  readonly deadlines: Readonly<Partial<Record<SandboxState, number>>>;
  /** Called once when a transition is older than its deadline. */
  readonly onOverdue: (entry: SandboxEntry) => void;
}

interface OwnedEntry extends SandboxEntry {
  record: SandboxRecord;
  watchdog: Disposable | undefined;
}

/** Tokens are looked up by digest, so that the time a lookup takes tells nothing about any token. */
function digest(token: string): string {
  return createHash('sha256').update(token).digest('base64');
}

export function createSandboxTable(deps: SandboxTableDependencies): SandboxTable {
  const index = createSandboxIndex();
  const entries = new Map<string, OwnedEntry>();
  const byToken = new Map<string, OwnedEntry>();

  function tokenDigest(record: SandboxRecord): string | undefined {
    const token = deps.accessToken(record);
    return token === undefined ? undefined : digest(token);
  }

  function watch(entry: OwnedEntry): void {
    entry.watchdog?.[Symbol.dispose]();
    entry.watchdog = undefined;
    const { state, id } = entry.record;
    const milliseconds = deps.deadlines[state];
    if (milliseconds === undefined) return;
    entry.watchdog = deps.clock.timer(milliseconds, () => {
      deps.log.error({ sandboxId: id, state, stage: entry.stage, milliseconds }, 'a transition is overdue');
      deps.metrics.overdue(state);
      deps.onOverdue(entry);
    });
  }

  /** The entry as the table owns it; an entry of somebody else's table is a programming error. */
  function owned(entry: SandboxEntry): OwnedEntry {
    const mine = entries.get(entry.record.id);
    if (mine !== entry) throw new PlatformError('internal', 'a sandbox entry is used after it is gone');
    return mine;
  }

  return {
    get size() {
      return entries.size;
    },
    add(record, { undo, held, captures }) {
      const entry: OwnedEntry = {
        record,
        undo,
        held,
        captures,
        failedPauses: 0,
        generation: undefined,
        stage: 'record',
        farewell: undefined,
        noted: undefined,
        ending: undefined,
        retry: undefined,
        watchdog: undefined,
      };
      entries.set(record.id, entry);
      const token = tokenDigest(record);
      if (token !== undefined) byToken.set(token, entry);
      index.put(record);
      watch(entry);
      return entry;
    },
    get: (id) => entries.get(id),
    findByAccessToken: (token) => byToken.get(digest(token)),
    all: () => [...entries.values()],
    page: (query) => index.page(query),
    move(entry, event) {
      const mine = entries.get(entry.record.id);
      // A late event of a sandbox that is gone, or of an older one with the same id, changes nothing.
      if (mine !== entry) return undefined;
      const transition = applyEvent(mine.record.state, event);
      if (transition === undefined) return undefined;
      if (transition.to === 'gone') {
        mine.watchdog?.[Symbol.dispose]();
        entries.delete(mine.record.id);
        byToken.delete(tokenDigest(mine.record) ?? '');
        index.delete(mine.record.id);
        return transition;
      }
      mine.record = { ...mine.record, state: transition.to };
      index.put(mine.record);
      watch(mine);
      return transition;
    },
    update(entry, record) {
      const mine = owned(entry);
      mine.record = { ...record, state: mine.record.state };
      index.put(mine.record);
    },
    countByState() {
      const counts = new Map<SandboxState, number>();
      for (const { record } of entries.values()) counts.set(record.state, (counts.get(record.state) ?? 0) + 1);
      const filled = SANDBOX_STATES.map((state) => [state, counts.get(state) ?? 0] as const);
      return Object.fromEntries(filled) as Record<SandboxState, number>;
    },
    allocated(counts) {
      let vcpus = 0;
      let memoryMB = 0;
      for (const { record } of entries.values()) {
        if (!counts(record.state)) continue;
        vcpus += record.resources.vcpus;
        memoryMB += record.resources.memoryMB;
      }
      return { vcpus, memoryMB };
    },
    [Symbol.dispose]() {
      for (const entry of entries.values()) entry.watchdog?.[Symbol.dispose]();
    },
  };
}
