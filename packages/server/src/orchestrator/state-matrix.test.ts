import {
  OPERATION_RULES,
  type OperationVerdict,
  SANDBOX_OPERATIONS,
  type SandboxOperation,
  type SandboxState,
} from '@agentenv/core';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, LIST_ALL, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

type Outcome = 'done' | 'waits, then done' | 'not_found' | 'joins' | 'pre-empts';
type Column = SandboxOperation | 'get' | 'data plane' | 'list';
/** States a sandbox can be in before pause, snapshot and fork are built, and the state of one that does not exist. */
type Row = Extract<SandboxState, 'creating' | 'running' | 'killing'> | 'missing';

/** State × operation, written by hand from the contract. */
const MATRIX: Readonly<Record<Row, Readonly<Record<Column, Outcome>>>> = {
  creating: {
    connect: 'waits, then done',
    timeout: 'waits, then done',
    refresh: 'waits, then done',
    kill: 'pre-empts',
    get: 'done',
    'data plane': 'not_found',
    list: 'done',
  },
  running: {
    connect: 'done',
    timeout: 'done',
    refresh: 'done',
    kill: 'done',
    get: 'done',
    'data plane': 'done',
    list: 'done',
  },
  killing: {
    connect: 'not_found',
    timeout: 'not_found',
    refresh: 'not_found',
    kill: 'joins',
    get: 'not_found',
    'data plane': 'not_found',
    list: 'not_found',
  },
  missing: {
    connect: 'not_found',
    timeout: 'not_found',
    refresh: 'not_found',
    kill: 'not_found',
    get: 'not_found',
    'data plane': 'not_found',
    list: 'not_found',
  },
};

interface Situation {
  readonly harness: LifecycleHarness;
  readonly id: string;
  /** Lets what is under way finish and waits for it. */
  finish(): Promise<unknown>;
}

async function bring(to: Row): Promise<Situation> {
  const harness = await startLifecycle();
  if (to === 'creating') {
    const start = harness.world.faults.next('start', { kind: 'hang' });
    const creating = harness.orchestrator.create(CREATE_BASE).catch((error: unknown) => error);
    await start.hit;
    const id = harness.orchestrator.list(LIST_ALL).sandboxes[0]?.id ?? '';
    return {
      harness,
      id,
      finish: async () => {
        start.release();
        return await creating;
      },
    };
  }
  const { id } = await harness.orchestrator.create(CREATE_BASE);
  if (to === 'running') return { harness, id, finish: async () => undefined };
  const stop = harness.world.faults.next('stop', { kind: 'hang' });
  const killing = harness.orchestrator.kill(id, 'test');
  await stop.hit;
  const finish = async () => {
    stop.release();
    await killing;
  };
  if (to === 'missing') await finish();
  return { harness, id, finish };
}

function perform({ harness, id }: Situation, column: Column): Promise<unknown> {
  const { orchestrator } = harness;
  switch (column) {
    case 'connect':
      return orchestrator.connect(id, 1_000);
    case 'timeout':
      return orchestrator.setTimeout(id, 1_000);
    case 'refresh':
      return orchestrator.refresh(id, 1_000);
    case 'kill':
      return orchestrator.kill(id, 'test');
    case 'get':
      return (async () => orchestrator.get(id))();
    case 'data plane':
      return orchestrator.target(id).kind === 'ready' ? Promise.resolve() : Promise.reject({ code: 'not_found' });
    case 'list':
      return orchestrator.list(LIST_ALL).sandboxes.some((record) => record.id === id)
        ? Promise.resolve()
        : Promise.reject({ code: 'not_found' });
  }
}

describe('state × operation', () => {
  const cells = Object.entries(MATRIX).flatMap(([state, row]) =>
    Object.entries(row).map(([column, outcome]) => [state as Row, column as Column, outcome] as const),
  );

  test.each(cells)('%s, %s: %s', async (state, column, expected) => {
    const situation = await bring(state);
    let settled = false;
    const operation = perform(situation, column).then(
      () => 'done' as const,
      (error: unknown) => error,
    );
    void operation.then(() => {
      settled = true;
    });
    await situation.harness.clock.advance(0);
    switch (expected) {
      case 'done':
        expect(await operation).toBe('done');
        await situation.finish();
        break;
      case 'not_found':
        expect(await operation).toMatchObject({ code: 'not_found' });
        await situation.finish();
        break;
      case 'waits, then done':
        expect(settled).toBe(false);
        await situation.finish();
        expect(await operation).toBe('done');
        expect(situation.harness.orchestrator.get(situation.id).timeoutSeconds).toBe(1_000);
        break;
      case 'pre-empts':
        expect(await operation).toBe('done');
        expect(await situation.finish()).toMatchObject({ code: 'killed' });
        break;
      case 'joins':
        expect(settled).toBe(false);
        await situation.finish();
        expect(await operation).toBe('done');
        break;
    }
  });

  test('what waits for a create that fails is told that there is no sandbox', async () => {
    const harness = await startLifecycle();
    const start = harness.world.faults.next('start', { kind: 'hang' });
    harness.world.faults.next('activate', { kind: 'fail' });
    const creating = harness.orchestrator.create(CREATE_BASE).catch((error: unknown) => error);
    await start.hit;
    const id = harness.orchestrator.list(LIST_ALL).sandboxes[0]?.id ?? '';
    const waiting = [harness.orchestrator.connect(id, 10), harness.orchestrator.setTimeout(id, 10)].map((operation) =>
      operation.catch((error: unknown) => error),
    );
    start.release();
    expect(await creating).toMatchObject({ code: 'create_failed' });
    for (const outcome of waiting) expect(await outcome).toMatchObject({ code: 'not_found' });
    expect(harness.leftovers()).toEqual({});
  });

  test('a request waits 60 s for a transition and no longer', async () => {
    const harness = await startLifecycle({ config: { createTimeoutMs: 600_000 } });
    const start = harness.world.faults.next('start', { kind: 'hang' });
    const creating = harness.orchestrator.create(CREATE_BASE);
    await start.hit;
    const id = harness.orchestrator.list(LIST_ALL).sandboxes[0]?.id ?? '';
    const waiting = harness.orchestrator.connect(id, 10).catch((error: unknown) => error);
    await harness.clock.advance(60_000);
    expect(await waiting).toMatchObject({ code: 'conflict', message: "waited 60 s for 'create' to finish" });
    start.release();
    await creating;
  });

  test('the rules of the domain say the same', () => {
    const possible: Readonly<Record<OperationVerdict, readonly Outcome[]>> = {
      allow: ['done'],
      wait: ['waits, then done'],
      // A running sandbox has no step that is cut off: the kill is simply done.
      'pre-empt': ['pre-empts', 'done'],
      join: ['joins'],
      'not-found': ['not_found'],
      resume: [],
      conflict: [],
    };
    for (const state of ['creating', 'running', 'killing'] as const) {
      for (const operation of SANDBOX_OPERATIONS) {
        expect(possible[OPERATION_RULES[operation][state]]).toContain(MATRIX[state][operation]);
      }
    }
  });
});
