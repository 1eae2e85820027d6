import { PlatformError } from '@agentenv/core';
import { ProcessConfigSchema } from '@agentenv/protocol/process';
import { create } from '@bufbuild/protobuf';
import { describe, expect, test } from 'vitest';
import { createOutputHub } from './output-hub.ts';
import { createProcessRecord, SIGKILL, SIGTERM } from './process-record.ts';
import { createFakeGuestProcess } from './testing/fake-guest-process.ts';

function setUp(options: Parameters<typeof createFakeGuestProcess>[0] = {}) {
  const guest = createFakeGuestProcess(options);
  const hub = createOutputHub();
  const subscriber = hub.subscribe();
  const record = createProcessRecord(guest, { tag: undefined, config: create(ProcessConfigSchema) }, hub);
  return { guest, record, subscriber, never: new AbortController().signal };
}

describe('process record', () => {
  test('runs, drains when reaped, ends when its output is complete', async () => {
    const { guest, record } = setUp();
    expect(record.state).toBe('running');
    guest.reap();
    await record.reaped;
    expect(record.state).toBe('draining');
    guest.closeOutput();
    await record.ended;
    expect(record.state).toBe('ended');
  });

  test.each([SIGKILL, SIGTERM] as const)(
    'after signal %i the end waits for what the pipes held and no longer',
    async (signal) => {
      const { guest, record, subscriber } = setUp();
      await record.signal(signal);
      expect(guest.signals).toEqual([signal]);
      await guest.emit('stdout', 'abc');
      guest.reap({ signal, unread: 3 });
      await record.reaped;
      expect(record.state).toBe('draining');
      await guest.emit('stdout', 'def');
      await record.ended;
      expect(subscriber.take()).toMatchObject({ output: { data: Buffer.from('abcdef') } });
      expect(subscriber.take()).toMatchObject({ kind: 'end', end: { exitCode: -1, exited: false } });
    },
  );

  test('a kill that comes after the process was reaped ends the wait for a grandchild', async () => {
    const { guest, record } = setUp();
    guest.reap();
    await record.reaped;
    await record.signal(SIGKILL);
    await record.ended;
    expect(guest.signals).toEqual([]);
  });

  test('a time limit ends the wait too', async () => {
    const { guest, record } = setUp();
    guest.reap({ signal: 9, reason: 'deadline' });
    await record.ended;
  });

  test('input keeps the order of the calls and closing comes behind it', async () => {
    const { guest, record, never } = setUp();
    guest.blockInput();
    const all = [record.write(Buffer.from('1'), never), record.write(Buffer.from('2'), never), record.closeStdin()];
    guest.unblockInput();
    await Promise.all(all);
    await record.closeStdin();
    expect(guest.input).toEqual(['1', '2', '<eof>']);
    await expect(record.write(Buffer.from('3'), never)).rejects.toThrow(expect.objectContaining({ code: 'internal' }));
  });

  test('a caller that gives up takes its input away and lets the next one through', async () => {
    const { guest, record, never } = setUp();
    const abort = new AbortController();
    guest.blockInput();
    const first = record.write(Buffer.from('1'), abort.signal);
    const second = record.write(Buffer.from('2'), never);
    await Promise.resolve();
    abort.abort(new PlatformError('canceled', 'gave up'));
    await expect(first).rejects.toThrow('gave up');
    guest.unblockInput();
    await second;
    expect(guest.input).toEqual(['2']);
  });

  test('input that waits when the process ends is refused', async () => {
    const { guest, record, never } = setUp();
    guest.blockInput();
    const write = record.write(Buffer.from('1'), never);
    const later = record.write(Buffer.from('2'), never);
    guest.reap();
    await expect(write).rejects.toThrow(expect.objectContaining({ code: 'internal' }));
    await expect(later).rejects.toThrow(expect.objectContaining({ code: 'not_found' }));
  });

  test('more input than fits is refused while some waits', async () => {
    const { guest, record, never } = setUp();
    guest.blockInput();
    const first = record.write(Buffer.alloc(10 * 1024 * 1024), never);
    await expect(record.write(Buffer.alloc(10 * 1024 * 1024), never)).rejects.toThrow(
      expect.objectContaining({ code: 'capacity' }),
    );
    guest.unblockInput();
    await first;
  });

  test('stdin that was never open refuses input, and closing it is no error', async () => {
    const { record, never } = setUp({ stdinOpen: false });
    await record.closeStdin();
    await expect(record.write(Buffer.from('x'), never)).rejects.toThrow(expect.objectContaining({ code: 'internal' }));
  });
});
