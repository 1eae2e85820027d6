import { createUndoStack, type SandboxRecord, SILENT_LOG } from '@agentenv/core';
import { createFakeClock, sandboxRecord } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { LIST_ALL } from '../testing/lifecycle-harness.ts';
import { createSandboxTable } from './sandbox-table.ts';

function setUp() {
  const clock = createFakeClock();
  const overdue: string[] = [];
  const table = createSandboxTable({
    clock,
    log: SILENT_LOG,
    metrics: { overdue: (state) => overdue.push(`counted ${state}`) },
    accessToken: ({ id, secure }) => (secure ? `token of ${id}` : undefined),
    deadlines: { creating: 1_000, killing: 5_000 },
    onOverdue: (entry) => overdue.push(`acted on ${entry.record.state}`),
  });
  const undoStack = () => createUndoStack({ clock, stepTimeoutMs: 1_000 });
  const add = (changes: Partial<SandboxRecord> = {}) =>
    table.add(sandboxRecord({ state: 'creating', ...changes }), {
      ...{ undo: undoStack(), held: undoStack(), captures: new Set() },
    });
  return { clock, table, add, overdue };
}

describe('sandbox table', () => {
  test('an event of an older generation with the same id changes nothing of the newer one', () => {
    const { table, add } = setUp();
    const older = add();
    table.move(older, 'kill');
    table.move(older, 'released');
    const newer = add();
    table.move(newer, 'ready');
    expect(table.move(older, 'kill')).toBeUndefined();
    expect(table.move(older, 'released')).toBeUndefined();
    expect(() => table.update(older, older.record)).toThrow('after it is gone');
    expect(table.get(newer.record.id)).toBe(newer);
    expect(newer.record.state).toBe('running');
    expect(table.countByState()).toMatchObject({ running: 1, killing: 0 });
  });

  test('a secure sandbox is found by its token until it is gone', () => {
    const { table, add } = setUp();
    const secure = add({ secure: true });
    const token = `token of ${secure.record.id}`;
    expect(table.findByAccessToken(token)).toBe(secure);
    expect(table.findByAccessToken('')).toBeUndefined();
    table.move(secure, 'kill');
    expect(table.findByAccessToken(token)).toBe(secure);
    table.move(secure, 'released');
    expect(table.findByAccessToken(token)).toBeUndefined();
    expect(table.findByAccessToken(`token of ${add({ secure: false }).record.id}`)).toBeUndefined();
  });

  test('an event without meaning in a state changes nothing', () => {
    const { table, add } = setUp();
    const entry = add();
    expect(table.move(entry, 'stored')).toBeUndefined();
    expect(entry.record.state).toBe('creating');
  });

  test('a transition that is older than its deadline is counted and acted on once', async () => {
    const { table, add, overdue, clock } = setUp();
    const entry = add();
    await clock.advance(10_000);
    expect(overdue).toEqual(['counted creating', 'acted on creating']);
    table.move(entry, 'kill');
    await clock.advance(10_000);
    expect(overdue.slice(2)).toEqual(['counted killing', 'acted on killing']);
  });

  test('a transition that ends in time is never overdue, and a state that lasts has no deadline', async () => {
    const { table, add, overdue, clock } = setUp();
    table.move(add(), 'ready');
    await clock.advance(1_000_000);
    expect(overdue).toEqual([]);
    expect(clock.pendingTimers).toBe(0);
  });

  test('an update cannot change the state', () => {
    const { table, add } = setUp();
    const entry = add();
    table.update(entry, { ...entry.record, state: 'paused', timeoutSeconds: 7 });
    expect(table.get(entry.record.id)?.record).toMatchObject({ state: 'creating', timeoutSeconds: 7 });
    expect(table.page({ ...LIST_ALL, templateId: undefined }).sandboxes).toEqual([]);
  });
});
