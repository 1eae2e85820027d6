import { PlatformError, type SandboxRecord } from '@agentenv/core';
import { createFakeClock, createRecordingLog, sandboxRecord } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { createRecordKeeper } from './record-keeper.ts';

type Answer = 'yes' | 'no' | 'never';

function setUp(answers: Answer[]) {
  const clock = createFakeClock();
  const log = createRecordingLog();
  const attempts: number[] = [];
  const answer = async (): Promise<void> => {
    attempts.push(clock.monotonic());
    const next = answers.shift() ?? 'yes';
    if (next === 'no') throw new PlatformError('no_space', 'disk full');
    if (next === 'never') await new Promise<never>(() => {});
  };
  const keeper = createRecordKeeper({
    ledger: { putSandbox: answer, deleteSandbox: answer },
    clock,
    log,
    timeoutMs: 10_000,
  });
  return { clock, log, attempts, keeper };
}

const record: SandboxRecord = sandboxRecord();

describe('record keeper', () => {
  test('a write fails with the ledger, at its deadline, and at once when it is aborted', async () => {
    const { keeper, clock } = setUp(['yes', 'no', 'never', 'never']);
    await keeper.write(record);
    await expect(keeper.write(record)).rejects.toMatchObject({ code: 'no_space' });
    const slow = keeper.write(record).catch((error: unknown) => error);
    await clock.advance(10_000);
    expect(await slow).toMatchObject({ code: 'deadline_exceeded', message: 'the ledger did not answer within 10 s' });
    const controller = new AbortController();
    const aborted = keeper.write(record, controller.signal).catch((error: unknown) => error);
    controller.abort(new PlatformError('killed', 'sandbox was killed'));
    expect(await aborted).toMatchObject({ code: 'killed' });
    expect(clock.pendingTimers).toBe(0);
  });

  test('a removal is repeated with growing pauses until it succeeds', async () => {
    const { keeper, clock, attempts, log } = setUp(['no', 'no', 'never', 'no']);
    await keeper.forget(record.id);
    expect(keeper.owed).toBe(1);
    await clock.advance(100_000);
    expect(attempts).toEqual([0, 1_000, 3_000, 17_000, 25_000]);
    expect(keeper.owed).toBe(0);
    expect(log.find('warn', 'could not be removed')).toHaveLength(4);
    expect(clock.pendingTimers).toBe(0);
  });

  test('disposal tries what is owed once more and says what stays', async () => {
    const { keeper, clock, attempts, log } = setUp(['no', 'no', 'no', 'yes']);
    await keeper.forget(record.id);
    await keeper.forget('i00000000000000000002' as SandboxRecord['id']);
    await keeper[Symbol.asyncDispose]();
    expect(attempts).toHaveLength(4);
    expect(log.find('error', 'until the next start')).toMatchObject([{ fields: { count: 1 } }]);
    expect(clock.pendingTimers).toBe(0);
  });
});
