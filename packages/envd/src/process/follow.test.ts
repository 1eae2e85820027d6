import { createFakeClock } from '@agentenv/core/testing';
import { ProcessConfigSchema } from '@agentenv/protocol/process';
import { create } from '@bufbuild/protobuf';
import { describe, expect, test } from 'vitest';
import { type FollowOptions, followProcess } from './follow.ts';
import { createOutputHub } from './output-hub.ts';
import { createProcessRecord } from './process-record.ts';
import { createFakeGuestProcess, type FakeGuestProcess } from './testing/fake-guest-process.ts';

interface Followed {
  readonly guest: FakeGuestProcess;
  readonly clock: ReturnType<typeof createFakeClock>;
  readonly abort: AbortController;
  readonly events: string[];
  readonly done: Promise<void>;
}

function follow(options: Partial<FollowOptions> = {}): Followed {
  const clock = createFakeClock();
  const abort = new AbortController();
  const guest = createFakeGuestProcess();
  const hub = createOutputHub();
  const subscriber = hub.subscribe();
  const record = createProcessRecord(guest, { tag: undefined, config: create(ProcessConfigSchema) }, hub);
  const events: string[] = [];
  const done = (async () => {
    const stream = followProcess(record, subscriber, {
      clock,
      keepaliveMs: 50_000,
      deadline: undefined,
      deadlineEndsProcess: false,
      signal: abort.signal,
      ...options,
    });
    for await (const item of stream) {
      if (item.kind === 'output') events.push(`${item.output.stream}:${Buffer.from(item.output.data).toString()}`);
      else if (item.event.case === 'end') events.push(`end ${item.event.value?.status}`);
      else events.push(item.event.case ?? 'nothing');
    }
  })();
  done.catch(() => undefined);
  return { guest, clock, abort, events, done };
}

const DEADLINE = expect.objectContaining({ code: 'deadline_exceeded' });

describe('the stream of a process', () => {
  test('is start, data, end', async () => {
    const { guest, events, done } = follow();
    await guest.emit('stdout', 'a');
    guest.reap({ code: 3 });
    guest.closeOutput();
    await done;
    expect(events).toEqual(['start', 'stdout:a', 'end exit status 3']);
  });

  test('the end waits for the pipes to close, whoever holds them', async () => {
    const { guest, events, done } = follow();
    guest.reap();
    await guest.emit('stdout', 'from a grandchild');
    guest.closeOutput();
    await done;
    expect(events).toEqual(['start', 'stdout:from a grandchild', 'end exit status 0']);
  });

  test('keepalives come after silence only and leave no timer behind', async () => {
    const { guest, clock, events, done } = follow();
    await clock.advance(49_000);
    await guest.emit('stdout', 'a');
    await clock.advance(49_999);
    expect(events).toEqual(['start', 'stdout:a']);
    await clock.advance(1);
    await clock.advance(50_000);
    expect(events).toEqual(['start', 'stdout:a', 'keepalive', 'keepalive']);
    guest.reap();
    guest.closeOutput();
    await done;
    expect(clock.pendingTimers).toBe(0);
  });

  test('ends without a word and without a timer when the client is gone', async () => {
    const { guest, clock, abort, events, done } = follow();
    await guest.emit('stdout', 'a');
    await clock.advance(1);
    abort.abort();
    await done;
    expect(events).toEqual(['start', 'stdout:a']);
    expect(clock.pendingTimers).toBe(0);
    expect(guest.signals).toEqual([]);
  });

  test('a deadline of the stream ends it and leaves the process alone', async () => {
    const { guest, clock, events, done } = follow({ deadline: 1_000 });
    await guest.emit('stdout', 'a');
    await clock.advance(1_000);
    await expect(done).rejects.toThrow(DEADLINE);
    expect(events).toEqual(['start', 'stdout:a']);
    expect(guest.signals).toEqual([]);
  });

  test('a deadline of the process ends the stream with the error, behind the last output', async () => {
    const { guest, clock, events, done } = follow({ deadline: 1_000, deadlineEndsProcess: true });
    await clock.advance(1_000);
    await guest.emit('stdout', 'last words');
    guest.reap({ signal: 9, reason: 'deadline' });
    await expect(done).rejects.toThrow(DEADLINE);
    expect(events).toEqual(['start', 'stdout:last words']);
  });

  test('a guest that does not report the kill does not keep the stream', async () => {
    const { clock, done } = follow({ deadline: 1_000, deadlineEndsProcess: true });
    await clock.advance(1_500);
    await expect(done).rejects.toThrow(DEADLINE);
  });

  test('endless output does not outlive the deadline', async () => {
    const { guest, clock, done } = follow({ deadline: 10 });
    let over = false;
    done.catch(() => {
      over = true;
    });
    for (let round = 0; !over; round++) {
      expect(round).toBeLessThan(200);
      await guest.emit('stdout', 'y\n');
      await clock.advance(1);
    }
    await expect(done).rejects.toThrow(DEADLINE);
  });

  test('another stream sees a process killed at its time limit as killed', async () => {
    const { guest, events, done } = follow();
    guest.reap({ signal: 9, reason: 'deadline' });
    await done;
    expect(events).toEqual(['start', 'end signal: killed']);
  });

  test('a sandbox that is gone ends it with that error', async () => {
    const { guest, done } = follow();
    guest.lose();
    await expect(done).rejects.toThrow(expect.objectContaining({ code: 'sandbox_unavailable' }));
  });
});
