import type { SandboxLogEntry } from '@agentenv/core';
import { createFakeClock, type FakeClock } from '@agentenv/core/testing';
import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import { createSandboxLogs, type LogQuery, type SandboxLogLimits, type SandboxLogs } from './sandbox-logs.ts';

const ALL: LogQuery = { limit: 1_000, direction: 'forward' };
const LIMITS: SandboxLogLimits = {
  entriesPerSandbox: 100,
  bytesPerSandbox: 1_000_000,
  bytes: 10_000_000,
  retentionMs: 60_000,
};

let clock: FakeClock;
let logs: SandboxLogs;
beforeEach(() => {
  clock = createFakeClock();
  logs = createSandboxLogs({ clock, limits: LIMITS });
  logs.open('i1');
});

const entry = (message: string, level: SandboxLogEntry['level'] = 'info'): SandboxLogEntry => ({
  level,
  logger: 'process',
  message,
  fields: {},
});
const messages = (query: Partial<LogQuery> = {}, id = 'i1') =>
  logs.read(id, { ...ALL, ...query })?.map(({ message }) => message);

describe('the log of a sandbox', () => {
  it('is read oldest or newest first, from a time or before it, and only so much', async () => {
    for (const message of ['one', 'two', 'three', 'four']) {
      logs.append('i1', entry(message));
      await clock.advance(1_000);
    }
    const start = clock.now() - 4_000;
    expect(messages()).toEqual(['one', 'two', 'three', 'four']);
    expect(messages({ direction: 'backward' })).toEqual(['four', 'three', 'two', 'one']);
    expect(messages({ limit: 2 })).toEqual(['one', 'two']);
    expect(messages({ limit: 2, direction: 'backward' })).toEqual(['four', 'three']);
    expect(messages({ limit: 0 })).toEqual([]);
    expect(messages({ from: start + 1_000 })).toEqual(['two', 'three', 'four']);
    expect(messages({ before: start + 1_000 })).toEqual(['one']);
  });

  it('is filtered by level and by the text of the message', () => {
    for (const level of ['debug', 'info', 'warn', 'error'] as const) logs.append('i1', entry(`a ${level}`, level));
    expect(messages({ level: 'debug' })).toHaveLength(4);
    expect(messages({ level: 'warn' })).toEqual(['a warn', 'a error']);
    expect(messages({ search: 'a e' })).toEqual(['a error']);
    expect(messages({ search: 'A' })).toEqual([]);
  });

  it('is unknown until it is opened', () => {
    logs.append('i2', entry('lost'));
    expect(logs.read('i2', ALL)).toBeUndefined();
  });

  it('can be read for a while after its end, and takes nothing more', async () => {
    logs.append('i1', entry('last'));
    logs.close('i1');
    logs.append('i1', entry('too late'));
    await clock.advance(59_999);
    expect(messages()).toEqual(['last']);
    await clock.advance(1);
    expect(logs.read('i1', ALL)).toBeUndefined();
    expect(logs.status()).toMatchObject({ sandboxes: 0, entries: 0, bytes: 0 });
    expect(clock.pendingTimers).toBe(0);
  });

  it('keeps the newest entries of a sandbox that writes too many', () => {
    for (let number = 1; number <= 250; number++) logs.append('i1', entry(String(number)));
    expect(messages()).toHaveLength(100);
    expect(messages({ limit: 1 })).toEqual(['151']);
    expect(logs.status()).toMatchObject({ entries: 100, dropped: 150 });
  });

  it('drops the oldest entries of all sandboxes when there is too much of everything', () => {
    logs = createSandboxLogs({ clock, limits: { ...LIMITS, bytes: 100_000 } });
    for (let number = 0; number < 400; number++) {
      const id = `i${number % 4}`;
      logs.open(id);
      logs.append(id, entry('x'.repeat(400)));
    }
    const { bytes, entries, dropped } = logs.status();
    expect(bytes).toBeLessThanOrEqual(100_000);
    expect(entries + dropped).toBe(400);
    for (const id of ['i0', 'i1', 'i2', 'i3']) expect(messages({}, id)?.length).toBeGreaterThan(10);
  });

  it('forgets a sandbox that has ended with the last entry it loses to others', () => {
    logs = createSandboxLogs({ clock, limits: { ...LIMITS, bytes: 10_000 } });
    for (let number = 0; number < 100; number++) {
      logs.open(`ended${number}`);
      logs.append(`ended${number}`, entry('x'.repeat(400)));
      logs.close(`ended${number}`);
    }
    expect(logs.read('ended0', ALL)).toBeUndefined();
    expect(messages({}, 'ended99')).toHaveLength(1);
    const { sandboxes, entries } = logs.status();
    expect(sandboxes).toBe(entries);
    expect(clock.pendingTimers).toBe(sandboxes);
  });

  it('cuts what is too long, and too many fields', () => {
    const fields = Object.fromEntries(Array.from({ length: 100 }, (_, index) => [`f${index}`, 'y'.repeat(5_000)]));
    logs.append('i1', { ...entry('x'.repeat(100_000)), fields });
    const [stored] = logs.read('i1', ALL) ?? [];
    expect(stored?.message).toHaveLength(1_024);
    expect(Object.keys(stored?.fields ?? {})).toHaveLength(16);
    expect(stored?.fields.f0).toHaveLength(512);
  });

  it('lets a reader go on behind the last entry without loss or repetition, whatever the wall clock does', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(
          fc.oneof(
            fc.record({ kind: fc.constant('write' as const), count: fc.integer({ min: 1, max: 5 }) }),
            fc.record({ kind: fc.constant('read' as const), limit: fc.integer({ min: 1, max: 4 }) }),
            fc.record({ kind: fc.constant('step' as const), milliseconds: fc.integer({ min: -5_000, max: 5_000 }) }),
          ),
          { maxLength: 30 },
        ),
        async (steps) => {
          const clock = createFakeClock();
          using logs = createSandboxLogs({ clock, limits: LIMITS });
          logs.open('i');
          const written: string[] = [];
          const seen: string[] = [];
          let from = 0;
          const read = (limit: number) => {
            for (const { at, message } of logs.read('i', { from, limit, direction: 'forward' }) ?? []) {
              seen.push(message);
              from = at + 1;
            }
          };
          for (const step of steps) {
            if (step.kind === 'read') read(step.limit);
            else if (step.kind === 'step') clock.stepWall(step.milliseconds);
            else {
              for (let count = 0; count < step.count && written.length < 100; count++) {
                written.push(String(written.length));
                logs.append('i', entry(String(written.length - 1)));
              }
            }
          }
          read(1_000);
          expect(seen).toEqual(written);
        },
      ),
      { seed: 5 },
    );
  });
});
