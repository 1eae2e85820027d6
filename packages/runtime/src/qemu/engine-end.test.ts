import { type Log, SILENT_LOG } from '@agentenv/core';
import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, test } from 'vitest';
import { endOfEvent, refineEnd, watchEnd } from './engine-end.ts';
import type { Qmp } from './qmp.ts';
import type { QmpEvent } from './qmp-events.ts';

const PANIC_TEXT =
  '[    2.001277] sysrq: Trigger a crash\r\n[    2.002456] Kernel panic - not syncing: sysrq triggered crash\r\n[ 2.1] Call Trace:\r\n';

function shutdown(reason: string, byGuest = true): QmpEvent {
  return { name: 'SHUTDOWN', byGuest, reason };
}

describe('the end of a guest', () => {
  test.each<[QmpEvent, string | undefined]>([
    [shutdown('guest-shutdown'), 'guest-poweroff'],
    [shutdown('guest-reset'), 'guest-reboot'],
    [shutdown('guest-panic'), 'guest-panic'],
    [shutdown('host-signal', false), 'engine-died'],
    [{ name: 'GUEST_PANICKED', action: 'pause' }, 'guest-panic'],
    [{ name: 'STOP' }, undefined],
    [{ name: 'RESET', byGuest: true, reason: 'guest-reset' }, undefined],
  ])('%o is %s', (event, reason) => {
    expect(endOfEvent(event)).toBe(reason);
  });

  test('a restart after a panic message is a panic and says why', () => {
    expect(refineEnd('guest-reboot', PANIC_TEXT)).toEqual({
      reason: 'guest-panic',
      detail: "the guest's kernel panicked: sysrq triggered crash",
    });
    expect(refineEnd('guest-reboot', 'reboot: Restarting system\r\n').reason).toBe('guest-reboot');
    expect(refineEnd('guest-poweroff', PANIC_TEXT).reason).toBe('guest-poweroff');
  });
});

describe('watching an engine', () => {
  function engine(consoleText: string | undefined = '') {
    const clock = createFakeClock();
    const listeners: ((event: QmpEvent) => void)[] = [];
    const closed = Promise.withResolvers<void>();
    const exited = Promise.withResolvers<string>();
    const errors: object[] = [];
    const log: Log = { ...SILENT_LOG, error: (fields) => errors.push(fields) };
    const qmp: Qmp = {
      version: '7.2.22',
      closed: closed.promise,
      execute: async () => {
        if (consoleText === undefined) throw new Error('no console');
        return consoleText;
      },
      subscribe(listener) {
        listeners.push(listener);
        return { [Symbol.dispose]() {} };
      },
      async [Symbol.asyncDispose]() {},
    };
    const ended = watchEnd({ qmp, exited: exited.promise, tail: () => 'last words', clock, log });
    const emit = (event: QmpEvent) => {
      for (const listener of listeners) listener(event);
    };
    return { clock, emit, closed, exited, ended, errors };
  }

  test('reads the console to tell a panic from a restart', async () => {
    const { emit, ended } = engine(PANIC_TEXT);
    emit(shutdown('guest-reset'));
    expect((await ended).reason).toBe('guest-panic');
  });

  test('reports a restart when the console cannot be read', async () => {
    const { emit, ended } = engine(undefined);
    emit(shutdown('guest-reset'));
    expect((await ended).reason).toBe('guest-reboot');
  });

  test('the first reason stays, even when the engine is gone before its console was read', async () => {
    const { emit, ended, exited, closed, clock } = engine();
    emit(shutdown('guest-shutdown'));
    exited.resolve('signal SIGKILL');
    closed.resolve();
    await clock.advance(1_000);
    expect((await ended).reason).toBe('guest-poweroff');
  });

  test('an engine that exits is told with how and with its last words', async () => {
    const { closed, exited, ended, clock } = engine();
    closed.resolve();
    exited.resolve('exit status 1');
    await clock.advance(1_000);
    expect(await ended).toEqual({
      reason: 'engine-died',
      detail: 'the engine is gone (exit status 1: last words)',
    });
  });

  test('the end of the control socket alone is an end, for an engine that is not our child', async () => {
    const { closed, ended, clock } = engine();
    closed.resolve();
    await clock.advance(200);
    expect((await ended).detail).toContain('control socket closed');
  });

  test('disk errors are logged, not more than one line per interval, and end nothing', async () => {
    const { emit, errors, clock } = engine();
    const failed: QmpEvent = {
      ...{ name: 'BLOCK_IO_ERROR', node: 'upper', operation: 'write', action: 'report' },
      reason: 'No space left on device',
    };
    for (let i = 0; i < 50; i++) emit(failed);
    expect(errors).toHaveLength(1);
    await clock.advance(10_000);
    emit(failed);
    expect(errors).toHaveLength(2);
    expect(errors[1]).toMatchObject({ node: 'upper', count: 50 });
  });
});
