import { setImmediate } from 'node:timers/promises';
import type { SandboxRecord } from '@agentenv/core';
import { createQemuWorld } from '@agentenv/runtime/testing';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { createHoldingBackend } from '../testing/holding-backend.ts';
import { type HookHost, type HookServer, startHookServer } from '../testing/hook-world.ts';
import {
  bring,
  CELLS,
  changesNothing,
  expectCell,
  expectTogether,
  MATRIX,
  type MatrixStage,
  type Row,
  waitsAlong,
} from '../testing/state-matrix.ts';

/** Lets what is ready run, answers of the engines included; what is held does not go on by that. */
const TURNS = 20;

describe('state × operation with microVMs', () => {
  let host: HookHost;
  let server: HookServer;
  let stage: MatrixStage;
  const stored = () => [...server.home.disk.sandboxes.values()].map((json) => JSON.parse(json) as SandboxRecord);

  beforeAll(async () => {
    const world = await createQemuWorld();
    host = {
      open: () => world.open(),
      rootfs: world.artifacts.rootfs.base,
      resources: { vcpus: 2, memoryMB: 512, diskSizeMB: 4_096 },
      slotsInUse: () => world.slots.status().inUse,
      [Symbol.asyncDispose]: () => world[Symbol.asyncDispose](),
    };
    const holding = createHoldingBackend();
    server = await startHookServer({ host, extensionUrl: undefined, timeoutMs: 1_000, backend: holding.wrap });
    stage = {
      orchestrator: server.orchestrator,
      hold: holding.hold,
      creating: () => stored().find(({ state }) => state === 'creating')?.id ?? '',
      async turn() {
        for (let turn = 0; turn < TURNS; turn++) await setImmediate();
      },
    };
  });
  afterEach(async () => {
    await Promise.all(stored().map(({ id }) => server.orchestrator.kill(id, 'test')));
    expect(stored()).toEqual([]);
    expect(host.slotsInUse()).toBe(0);
  });
  afterAll(async () => {
    await server?.[Symbol.asyncDispose]();
    await host?.[Symbol.asyncDispose]();
  });

  const shared = CELLS.filter((cell) => changesNothing(cell) || waitsAlong(cell));
  const alone = CELLS.filter((cell) => !shared.includes(cell));

  test.each(Object.keys(MATRIX) as Row[])('%s: what is refused, what is read and what waits', async (row) => {
    const cells = shared.filter((cell) => cell.row === row);
    await expectTogether(await bring(stage, row), cells);
  });

  test.each(alone)('$row, $column ($memory): $outcome', async (cell) => {
    await expectCell(await bring(stage, cell.row), cell);
  });
});
