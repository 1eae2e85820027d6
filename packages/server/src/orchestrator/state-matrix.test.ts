import { OPERATION_RULES, type OperationVerdict, SANDBOX_OPERATIONS, SANDBOX_STATES } from '@agentenv/core';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';
import { bring, CELLS, expectCell, MATRIX, type MatrixStage, type Outcome } from '../testing/state-matrix.ts';

function stageOf({ orchestrator, world, clock, stored }: LifecycleHarness): MatrixStage {
  return {
    orchestrator,
    hold: (call) => world.faults.next(call, { kind: 'hang' }),
    creating: () => stored()[0]?.id ?? '',
    turn: () => clock.advance(0),
  };
}

const openStage = async (): Promise<MatrixStage> => stageOf(await startLifecycle());

describe('state × operation', () => {
  test.each(CELLS)('$row, $column ($memory): $outcome', async (cell) => {
    await expectCell(await bring(await openStage(), cell.row), cell);
  });

  test('what waits for a create that fails is told that there is no sandbox', async () => {
    const harness = await startLifecycle();
    const start = harness.world.faults.next('start', { kind: 'hang' });
    harness.world.faults.next('activate', { kind: 'fail' });
    const creating = harness.orchestrator.create(CREATE_BASE).catch((error: unknown) => error);
    await start.hit;
    const id = harness.stored()[0]?.id ?? '';
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
    const id = harness.stored()[0]?.id ?? '';
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
      // A sandbox without a running step has nothing that is cut off: the kill is simply done.
      'pre-empt': ['pre-empts', 'done'],
      // A connect that joins a resume still makes sure of its own timeout.
      join: ['joins', 'waits, then done'],
      'not-found': ['not_found'],
      resume: ['done'],
      conflict: ['conflict'],
    };
    for (const state of SANDBOX_STATES) {
      for (const operation of SANDBOX_OPERATIONS) {
        expect(possible[OPERATION_RULES[operation][state]]).toContain(MATRIX[state][operation]);
      }
    }
  });

  test('a conflict names the state', async () => {
    const harness = await startLifecycle();
    const { id } = await bring(stageOf(harness), 'paused');
    await expect(harness.orchestrator.setTimeout(id, 10)).rejects.toMatchObject({
      code: 'conflict',
      message: `sandbox '${id}' is paused`,
    });
    await expect(harness.orchestrator.setTimeout(id, 0)).rejects.toMatchObject({ code: 'conflict' });
    expect(harness.orchestrator.get(id).state).toBe('paused');
  });
});
