import type { CaptureKind, SandboxOperation, SandboxState } from '@agentenv/core';
import { expect } from 'vitest';
import type { Orchestrator } from '../orchestrator/orchestrator.ts';
import { CREATE_BASE, LIST_ALL } from './lifecycle-harness.ts';

export type Outcome =
  | 'done'
  | 'waits, then done'
  | 'waits, then conflict'
  | 'not_found'
  | 'conflict'
  | 'not_proxyable'
  | 'joins'
  | 'pre-empts';
export type OnMemory = Extract<SandboxOperation, 'pause' | 'resume' | 'connect'>;
export type Column = SandboxOperation | 'get' | 'data plane' | 'list';
/** Every state, that of a sandbox without its memory, and that of one that does not exist. */
export type Row = SandboxState | 'paused without memory' | 'missing';

/** State × operation, written by hand from the contract. */
export const MATRIX: Readonly<Record<Row, Readonly<Record<Column, Outcome>>>> = {
  creating: {
    pause: 'conflict',
    resume: 'conflict',
    connect: 'waits, then done',
    timeout: 'waits, then done',
    refresh: 'waits, then done',
    network: 'conflict',
    snapshot: 'conflict',
    fork: 'conflict',
    kill: 'pre-empts',
    get: 'not_found',
    'data plane': 'not_proxyable',
    list: 'not_found',
  },
  running: {
    pause: 'done',
    resume: 'conflict',
    connect: 'done',
    timeout: 'done',
    refresh: 'done',
    network: 'done',
    snapshot: 'done',
    fork: 'done',
    kill: 'done',
    get: 'done',
    'data plane': 'done',
    list: 'done',
  },
  snapshotting: {
    pause: 'conflict',
    resume: 'conflict',
    connect: 'waits, then done',
    timeout: 'waits, then done',
    refresh: 'waits, then done',
    network: 'waits, then done',
    snapshot: 'conflict',
    fork: 'conflict',
    kill: 'pre-empts',
    get: 'done',
    'data plane': 'done',
    list: 'done',
  },
  forking: {
    pause: 'conflict',
    resume: 'conflict',
    connect: 'waits, then done',
    timeout: 'waits, then done',
    refresh: 'waits, then done',
    network: 'waits, then done',
    snapshot: 'conflict',
    fork: 'conflict',
    kill: 'pre-empts',
    get: 'done',
    'data plane': 'done',
    list: 'done',
  },
  pausing: {
    pause: 'joins',
    resume: 'conflict',
    connect: 'waits, then done',
    timeout: 'conflict',
    refresh: 'conflict',
    network: 'conflict',
    snapshot: 'conflict',
    fork: 'conflict',
    kill: 'pre-empts',
    get: 'done',
    'data plane': 'not_proxyable',
    list: 'done',
  },
  paused: {
    pause: 'conflict',
    resume: 'done',
    connect: 'done',
    timeout: 'conflict',
    refresh: 'conflict',
    network: 'conflict',
    snapshot: 'conflict',
    fork: 'conflict',
    kill: 'done',
    get: 'done',
    'data plane': 'not_proxyable',
    list: 'done',
  },
  'paused without memory': {
    pause: 'conflict',
    resume: 'done',
    connect: 'done',
    timeout: 'conflict',
    refresh: 'conflict',
    network: 'conflict',
    snapshot: 'conflict',
    fork: 'conflict',
    kill: 'done',
    get: 'done',
    'data plane': 'not_proxyable',
    list: 'done',
  },
  resuming: {
    pause: 'conflict',
    resume: 'joins',
    connect: 'waits, then done',
    timeout: 'waits, then done',
    refresh: 'waits, then done',
    network: 'conflict',
    snapshot: 'conflict',
    fork: 'conflict',
    kill: 'pre-empts',
    get: 'done',
    'data plane': 'not_proxyable',
    list: 'done',
  },
  killing: {
    pause: 'not_found',
    resume: 'not_found',
    connect: 'not_found',
    timeout: 'not_found',
    refresh: 'not_found',
    network: 'not_found',
    snapshot: 'not_found',
    fork: 'not_found',
    kill: 'joins',
    get: 'not_found',
    'data plane': 'not_found',
    list: 'not_found',
  },
  missing: {
    pause: 'not_found',
    resume: 'not_found',
    connect: 'not_found',
    timeout: 'not_found',
    refresh: 'not_found',
    network: 'not_found',
    snapshot: 'not_found',
    fork: 'not_found',
    kill: 'not_found',
    get: 'not_found',
    'data plane': 'not_found',
    list: 'not_found',
  },
};

/** The same with `memory: false`; a pause that is under way is one with memory. */
const WITHOUT_MEMORY: Readonly<Record<Row, Readonly<Record<OnMemory, Outcome>>>> = {
  creating: { pause: 'conflict', resume: 'conflict', connect: 'waits, then done' },
  running: { pause: 'done', resume: 'conflict', connect: 'done' },
  snapshotting: { pause: 'conflict', resume: 'conflict', connect: 'waits, then done' },
  forking: { pause: 'conflict', resume: 'conflict', connect: 'waits, then done' },
  pausing: { pause: 'waits, then conflict', resume: 'conflict', connect: 'waits, then done' },
  paused: { pause: 'conflict', resume: 'done', connect: 'done' },
  'paused without memory': { pause: 'conflict', resume: 'done', connect: 'done' },
  resuming: { pause: 'conflict', resume: 'joins', connect: 'waits, then done' },
  killing: { pause: 'not_found', resume: 'not_found', connect: 'not_found' },
  missing: { pause: 'not_found', resume: 'not_found', connect: 'not_found' },
};

/** One cell: what that operation, with or without memory, does in that state. */
export interface Cell {
  readonly row: Row;
  readonly column: Column;
  readonly memory: CaptureKind;
  readonly outcome: Outcome;
}

/** Every cell of both tables. */
export const CELLS: readonly Cell[] = [
  ...Object.entries(MATRIX).flatMap(([row, cells]) =>
    Object.entries(cells).map(([column, outcome]) => {
      return { row: row as Row, column: column as Column, memory: 'full' as const, outcome };
    }),
  ),
  ...Object.entries(WITHOUT_MEMORY).flatMap(([row, cells]) =>
    Object.entries(cells).map(([column, outcome]) => {
      return { row: row as Row, column: column as Column, memory: 'disk' as const, outcome };
    }),
  ),
];

const NEW_RULES = { allowInternetAccess: false, allowOut: ['192.0.2.7/32'], denyOut: [] };
const FORK_ONE = { count: 1, timeoutSeconds: 1_000 };

/** A call of the backend that was begun and waits to be let go. */
export interface HeldCall {
  readonly hit: Promise<unknown>;
  release(): void;
}

/** A server whose backend can be made to wait in the middle of what it does. */
export interface MatrixStage {
  readonly orchestrator: Orchestrator;
  /** Holds the next call of that kind. */
  hold(call: 'start' | 'capture' | 'stop'): HeldCall;
  /** Id of the sandbox that is being created. */
  creating(): string;
  /** Lets everything run that can. */
  turn(): Promise<unknown>;
}

/** A sandbox in the state of a row. */
export interface Situation {
  readonly stage: MatrixStage;
  readonly id: string;
  /** Lets what is under way finish and waits for it; answers its error. */
  finish(): Promise<unknown>;
}

const errorOf = (operation: Promise<unknown>): Promise<unknown> =>
  operation.then(
    () => undefined,
    (error: unknown) => error,
  );

/** Makes a sandbox and brings it into a state. */
export async function bring(stage: MatrixStage, to: Row): Promise<Situation> {
  const { orchestrator } = stage;
  async function held(
    call: 'start' | 'capture' | 'stop',
    begin: () => Promise<unknown>,
    id?: string,
  ): Promise<Situation> {
    const step = stage.hold(call);
    const underWay = errorOf(begin());
    await step.hit;
    const finish = async () => {
      step.release();
      return await underWay;
    };
    return { stage, id: id ?? stage.creating(), finish };
  }
  if (to === 'creating') return held('start', () => orchestrator.create(CREATE_BASE));
  const { id } = await orchestrator.create(CREATE_BASE);
  const still: Situation = { stage, id, finish: async () => undefined };
  switch (to) {
    case 'running':
      return still;
    case 'pausing':
      return held('capture', () => orchestrator.pause(id), id);
    case 'snapshotting':
      return held('capture', () => orchestrator.snapshot(id, undefined), id);
    case 'forking':
      return held('capture', () => orchestrator.fork(id, FORK_ONE), id);
    case 'paused':
    case 'paused without memory':
    case 'resuming':
      await orchestrator.pause(id, to === 'paused without memory' ? 'disk' : 'full');
      return to === 'resuming' ? held('start', () => orchestrator.resume(id, 500), id) : still;
    case 'killing':
    case 'missing': {
      const situation = await held('stop', () => orchestrator.kill(id, 'test'), id);
      if (to === 'missing') await situation.finish();
      return situation;
    }
  }
}

function perform({ stage: { orchestrator }, id }: Situation, { column, memory }: Cell): Promise<unknown> {
  switch (column) {
    case 'pause':
      return orchestrator.pause(id, memory);
    case 'resume':
      return orchestrator.resume(id, 1_000, memory);
    case 'connect':
      return orchestrator.connect(id, 1_000, memory);
    case 'timeout':
      return orchestrator.setTimeout(id, 1_000);
    case 'refresh':
      return orchestrator.refresh(id, 1_000);
    case 'network':
      return orchestrator.updateNetwork(id, NEW_RULES);
    case 'snapshot':
      return orchestrator.snapshot(id, undefined);
    case 'fork':
      return orchestrator.fork(id, FORK_ONE);
    case 'kill':
      return orchestrator.kill(id, 'test');
    case 'get':
      return (async () => orchestrator.get(id))();
    case 'data plane':
      return (async () => {
        const { kind } = orchestrator.target(id);
        if (kind !== 'ready') throw { code: kind.replace('-', '_') };
      })();
    case 'list':
      return orchestrator.list(LIST_ALL).sandboxes.some((record) => record.id === id)
        ? Promise.resolve()
        : Promise.reject({ code: 'not_found' });
  }
}

/** Begins the operation of a cell; `outcome` is `done` or its error. */
function begin(situation: Situation, cell: Cell): { readonly outcome: Promise<unknown>; isSettled(): boolean } {
  let settled = false;
  const outcome = perform(situation, cell)
    .then(
      () => 'done' as const,
      (error: unknown) => error,
    )
    .finally(() => {
      settled = true;
    });
  return { outcome, isSettled: () => settled };
}

/** True for cells that change nothing: any number of them can be asked of one sandbox. */
export function changesNothing({ column, outcome }: Cell): boolean {
  return ['not_found', 'conflict', 'not_proxyable'].includes(outcome) || ['get', 'list', 'data plane'].includes(column);
}

/** True for cells that wait for what is under way without changing what becomes of it. */
export function waitsAlong({ row, column, outcome }: Cell): boolean {
  return outcome === 'joins' || (outcome === 'waits, then done' && !(row === 'pausing' && column === 'connect'));
}

function expectEffect({ stage, id }: Situation, { column }: Cell): void {
  const effect = column === 'network' ? { network: NEW_RULES } : { timeoutSeconds: 1_000 };
  expect(stage.orchestrator.get(id)).toMatchObject(effect);
}

/** Asks for what a cell says and lets the rest finish. */
export async function expectCell(situation: Situation, cell: Cell): Promise<void> {
  const { outcome, isSettled } = begin(situation, cell);
  await situation.stage.turn();
  switch (cell.outcome) {
    case 'done':
      expect(await outcome).toBe('done');
      await situation.finish();
      break;
    case 'not_found':
    case 'conflict':
    case 'not_proxyable':
      expect(await outcome).toMatchObject({ code: cell.outcome });
      await situation.finish();
      break;
    case 'waits, then done':
      expect(isSettled()).toBe(false);
      await situation.finish();
      expect(await outcome).toBe('done');
      expectEffect(situation, cell);
      break;
    case 'waits, then conflict':
      expect(isSettled()).toBe(false);
      await situation.finish();
      expect(await outcome).toMatchObject({ code: 'conflict' });
      break;
    case 'pre-empts':
      expect(await outcome).toBe('done');
      expect(await situation.finish()).toMatchObject({ code: 'killed' });
      break;
    case 'joins':
      expect(isSettled()).toBe(false);
      await situation.finish();
      expect(await outcome).toBe('done');
      break;
  }
}

/** Asks one sandbox for everything that changes nothing, then for everything that waits along, and lets that finish. */
export async function expectTogether(situation: Situation, cells: readonly Cell[]): Promise<void> {
  for (const cell of cells.filter(changesNothing)) {
    const name = `${cell.row}, ${cell.column} (${cell.memory})`;
    const expected = cell.outcome === 'done' ? 'done' : expect.objectContaining({ code: cell.outcome });
    expect(await begin(situation, cell).outcome, name).toEqual(expected);
  }
  const waiting = cells.filter(waitsAlong).map((cell) => ({ cell, ...begin(situation, cell) }));
  await situation.stage.turn();
  for (const { cell, isSettled } of waiting) expect(isSettled(), cell.column).toBe(false);
  await situation.finish();
  for (const { cell, outcome } of waiting) {
    expect(await outcome, cell.column).toBe('done');
    if (cell.outcome === 'waits, then done') expectEffect(situation, cell);
  }
}
