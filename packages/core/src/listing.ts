import { matchesMetadata } from './metadata-filter.ts';
import {
  compareNewestFirst,
  decodePageToken,
  encodePageToken,
  type ListOrder,
  type PagePosition,
} from './page-token.ts';
import type { SandboxRecord } from './sandbox.ts';
import { type VisibleState, visibleState } from './state-machine.ts';

export interface SandboxQuery {
  readonly states: readonly VisibleState[];
  /** All pairs must match exactly. */
  readonly metadata: ReadonlyMap<string, string>;
  /** Inclusive, milliseconds since the epoch. */
  readonly startedAfter: number | undefined;
  /** Only sandboxes of this template. */
  readonly templateId: string | undefined;
  readonly order: ListOrder;
  /** Largest page. */
  readonly limit: number;
  /** As given by the client; undefined for the first page. */
  readonly nextToken: string | undefined;
}

export interface SandboxPage {
  readonly sandboxes: readonly SandboxRecord[];
  /** undefined on the last page. */
  readonly nextToken: string | undefined;
  /** Running matches before paging; 0 when `running` was not asked for. */
  readonly totalRunning: number;
}

/**
 * Every sandbox of this host, by id and in the order of lists, so that a page costs its own length and not a sort of all
 * (contract e2b.md 6.2: `startedAt` descending, id ascending on ties; `asc` is the exact reverse).
 */
export interface SandboxIndex {
  readonly size: number;
  get(id: string): SandboxRecord | undefined;
  /** Inserts or replaces the record with this id. */
  put(record: SandboxRecord): void;
  delete(id: string): void;
  all(): readonly SandboxRecord[];
  /** Malformed token: `invalid_argument` with the message `invalid next token`. */
  page(query: SandboxQuery): SandboxPage;
}

export function createSandboxIndex(): SandboxIndex {
  const byId = new Map<string, SandboxRecord>();
  /** In ascending order, so that a new sandbox is appended. */
  const ascending: SandboxRecord[] = [];
  /** Kept up to date so that an unfiltered list need not look at every record. */
  let running = 0;

  const runningPart = (record: SandboxRecord | undefined): number =>
    record !== undefined && visibleState(record.state) === 'running' ? 1 : 0;

  /** First position whose record is not before `position` in ascending order. */
  function lowerBound(position: PagePosition): number {
    let low = 0;
    let high = ascending.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      const record = ascending[middle];
      if (record !== undefined && compareNewestFirst(record, position) > 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function remove(record: SandboxRecord): void {
    const at = lowerBound(record);
    if (ascending[at]?.id === record.id) ascending.splice(at, 1);
  }

  function matches(record: SandboxRecord, query: SandboxQuery): boolean {
    if (query.startedAfter !== undefined && record.startedAt < query.startedAfter) return false;
    if (query.templateId !== undefined && record.templateId !== query.templateId) return false;
    return matchesMetadata(record.metadata, query.metadata);
  }

  function countRunning(query: SandboxQuery): number {
    if (!query.states.includes('running')) return 0;
    if (query.startedAfter === undefined && query.templateId === undefined && query.metadata.size === 0) return running;
    let count = 0;
    for (const record of ascending) if (runningPart(record) === 1 && matches(record, query)) count++;
    return count;
  }

  return {
    get size() {
      return byId.size;
    },
    get: (id) => byId.get(id),
    put(record) {
      const existing = byId.get(record.id);
      running += runningPart(record) - runningPart(existing);
      byId.set(record.id, record);
      if (existing !== undefined) {
        const at = lowerBound(existing);
        if (existing.startedAt === record.startedAt && ascending[at]?.id === record.id) {
          ascending[at] = record;
          return;
        }
        remove(existing);
      }
      ascending.splice(lowerBound(record), 0, record);
    },
    delete(id) {
      const record = byId.get(id);
      if (record === undefined) return;
      running -= runningPart(record);
      byId.delete(id);
      remove(record);
    },
    all: () => [...ascending],
    page(query) {
      const states = new Set(query.states);
      const step = query.order === 'asc' ? 1 : -1;
      let at = query.order === 'asc' ? 0 : ascending.length - 1;
      if (query.nextToken !== undefined) {
        const position = decodePageToken(query.nextToken, query.order);
        const bound = lowerBound(position);
        // The position itself may be gone by now; then the bound is already the record after it in ascending order.
        const present = ascending[bound]?.id === position.id && ascending[bound]?.startedAt === position.startedAt;
        at = query.order === 'desc' ? bound - 1 : present ? bound + 1 : bound;
      }
      const sandboxes: SandboxRecord[] = [];
      let nextToken: string | undefined;
      for (; ; at += step) {
        const record = ascending[at];
        if (record === undefined) break;
        const shown = visibleState(record.state);
        if (shown === undefined || !states.has(shown) || !matches(record, query)) continue;
        const last = sandboxes[query.limit - 1];
        if (last !== undefined) {
          nextToken = encodePageToken(last, query.order);
          break;
        }
        sandboxes.push(record);
      }
      return { sandboxes, nextToken, totalRunning: countRunning(query) };
    },
  };
}
