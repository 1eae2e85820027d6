import {
  type CaptureKind,
  OPERATION_RULES,
  type OperationVerdict,
  SANDBOX_OPERATIONS,
  SANDBOX_STATES,
  type SandboxOperation,
  type SandboxState,
} from '@agentenv/core';
import { describe, expect, test } from 'vitest';
import { CREATE_BASE, LIST_ALL, type LifecycleHarness, startLifecycle } from '../testing/lifecycle-harness.ts';

type Outcome =
  | 'done'
  | 'waits, then done'
  | 'waits, then conflict'
  | 'not_found'
  | 'conflict'
  | 'not_proxyable'
  | 'joins'
  | 'pre-empts';
type OnMemory = Extract<SandboxOperation, 'pause' | 'resume' | 'connect'>;
type Column = SandboxOperation | 'get' | 'data plane' | 'list';
/** Every state, that of a sandbox without its memory, and that of one that does not exist. */
type Row = SandboxState | 'paused without memory' | 'missing';

/** State × operation, written by hand from the contract. */
const MATRIX: Readonly<Record<Row, Readonly<Record<Column, Outcome>>>> = {
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

const NEW_RULES = { allowInternetAccess: false, allowOut: ['192.0.2.7/32'], denyOut: [] };
const FORK_ONE = { count: 1, timeoutSeconds: 1_000 };

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
    const id = harness.stored()[0]?.id ?? '';
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
  if (to === 'pausing' || to === 'snapshotting' || to === 'forking') {
    const capture = harness.world.faults.next('capture', { kind: 'hang' });
    const { orchestrator } = harness;
    const steps = {
      pausing: () => orchestrator.pause(id),
      snapshotting: () => orchestrator.snapshot(id, undefined),
      forking: () => orchestrator.fork(id, FORK_ONE),
    };
    const capturing = steps[to]().catch((error: unknown) => error);
    await capture.hit;
    const finish = async () => {
      capture.release();
      return await capturing;
    };
    return { harness, id, finish };
  }
  if (to === 'paused' || to === 'paused without memory' || to === 'resuming') {
    await harness.orchestrator.pause(id, to === 'paused without memory' ? 'disk' : 'full');
    if (to !== 'resuming') return { harness, id, finish: async () => undefined };
    const start = harness.world.faults.next('start', { kind: 'hang' });
    const resuming = harness.orchestrator.resume(id, 500).catch((error: unknown) => error);
    await start.hit;
    const finish = async () => {
      start.release();
      return await resuming;
    };
    return { harness, id, finish };
  }
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

function perform({ harness, id }: Situation, column: Column, memory: CaptureKind): Promise<unknown> {
  const { orchestrator } = harness;
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

describe('state × operation', () => {
  const cells = Object.entries(MATRIX).flatMap(([state, row]) =>
    Object.entries(row).map(([column, outcome]) => [state as Row, column as Column, 'full', outcome] as const),
  );
  const without = Object.entries(WITHOUT_MEMORY).flatMap(([state, row]) =>
    Object.entries(row).map(([column, outcome]) => [state as Row, column as Column, 'disk', outcome] as const),
  );

  test.each([...cells, ...without])('%s, %s (%s): %s', async (state, column, memory, expected) => {
    const situation = await bring(state);
    let settled = false;
    const operation = perform(situation, column, memory).then(
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
      case 'conflict':
      case 'not_proxyable':
        expect(await operation).toMatchObject({ code: expected });
        await situation.finish();
        break;
      case 'waits, then done':
        expect(settled).toBe(false);
        await situation.finish();
        expect(await operation).toBe('done');
        expect(situation.harness.orchestrator.get(situation.id)).toMatchObject(
          column === 'network' ? { network: NEW_RULES } : { timeoutSeconds: 1_000 },
        );
        break;
      case 'waits, then conflict':
        expect(settled).toBe(false);
        await situation.finish();
        expect(await operation).toMatchObject({ code: 'conflict' });
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
    const { harness, id } = await bring('paused');
    await expect(harness.orchestrator.setTimeout(id, 10)).rejects.toMatchObject({
      code: 'conflict',
      message: `sandbox '${id}' is paused`,
    });
    await expect(harness.orchestrator.setTimeout(id, 0)).rejects.toMatchObject({ code: 'conflict' });
    expect(harness.orchestrator.get(id).state).toBe('paused');
  });
});
