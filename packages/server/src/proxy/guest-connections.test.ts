import { Duplex } from 'node:stream';
import { PlatformError } from '@agentenv/core';
import { createFakeClock, createRecordingLog, type FakeClock, type RecordingLog } from '@agentenv/core/testing';
import { beforeEach, describe, expect, it } from 'vitest';
import { createSocketGroup } from '../orchestrator/socket-group.ts';
import { type ConnectTarget, createGuestConnections, type OpenGuestConnection } from './guest-connections.ts';

let clock: FakeClock;
let log: RecordingLog;
let open: OpenGuestConnection;
beforeEach(() => {
  clock = createFakeClock();
  log = createRecordingLog();
  open = createGuestConnections({ clock, log, maxConnections: 2 });
});

const never = new AbortController().signal;
const refused = (): PlatformError =>
  new PlatformError('unavailable', 'connection refused', { details: { status: 'REFUSED' } });
const connection = (): Duplex => new Duplex({ read() {}, write: (_chunk, _encoding, done) => done() });

/** A generation whose ports answer as `connectPort` says. */
function generation(connectPort: ConnectTarget['agent']['connectPort']): ConnectTarget {
  return { agent: { connectPort }, sockets: createSocketGroup() };
}

describe('a connection into a sandbox', () => {
  it('is tried five times, 100 to 400 ms apart, when it is refused', async () => {
    const attempts: number[] = [];
    const outcome = open(
      generation(async () => {
        attempts.push(clock.monotonic());
        throw refused();
      }),
      80,
      never,
    );
    for (let count = 0; count < 20; count++) await clock.advance(50);
    expect(await outcome).toEqual({ kind: 'port-closed', port: 80 });
    const [first = 0] = attempts;
    expect(attempts.map((time) => time - first)).toEqual([0, 100, 300, 600, 1000]);
    expect(clock.pendingTimers).toBe(0);
    expect(log.lines).toEqual([]);
  });

  it('is there as soon as an attempt succeeds', async () => {
    let count = 0;
    const made = connection();
    const outcome = open(
      generation(async () => {
        if (++count < 3) throw refused();
        return made;
      }),
      80,
      never,
    );
    await clock.advance(100);
    await clock.advance(200);
    expect(await outcome).toMatchObject({ kind: 'connected', stream: made });
  });

  it('is not tried again once nobody waits for it', async () => {
    let count = 0;
    const leaving = new AbortController();
    const outcome = open(
      generation(async () => {
        count++;
        throw refused();
      }),
      80,
      leaving.signal,
    );
    await clock.advance(50);
    leaving.abort(new Error('left'));
    await expect(outcome).rejects.toThrow('left');
    await clock.advance(5_000);
    expect(count).toBe(1);
    expect(clock.pendingTimers).toBe(0);
  });

  it('that is not there in 5 s is given up, and closed when it comes too late', async () => {
    const late = Promise.withResolvers<Duplex>();
    const outcome = open(
      generation(() => late.promise),
      80,
      never,
    );
    await clock.advance(5_000);
    expect(await outcome).toEqual({ kind: 'port-closed', port: 80 });
    const made = connection();
    late.resolve(made);
    await clock.advance(0);
    expect(made.destroyed).toBe(true);
  });

  it.each([
    [new PlatformError('sandbox_unavailable', 'gone'), 'not-found'],
    [new PlatformError('capacity', 'too many', { details: { status: 'LIMIT' } }), 'too-many-connections'],
    [new PlatformError('deadline_exceeded', 'late', { details: { status: 'DEADLINE' } }), 'port-closed'],
  ])('that fails with %s is told as %s', async (error, kind) => {
    const outcome = await open(
      generation(() => Promise.reject(error)),
      80,
      never,
    );
    expect(outcome.kind).toBe(kind);
    expect(log.lines).toEqual([]);
  });

  it('that fails without a good reason is logged', async () => {
    const outcome = await open(
      generation(() => Promise.reject(new Error('a fault'))),
      80,
      never,
    );
    expect(outcome).toEqual({ kind: 'port-closed', port: 80 });
    expect(log.lines).toMatchObject([{ level: 'warn' }]);
  });

  it('counts against its generation alone, until it is closed or has failed', async () => {
    const made: Duplex[] = [];
    const target = generation(async () => {
      const one = connection();
      made.push(one);
      return one;
    });
    expect((await open(target, 80, never)).kind).toBe('connected');
    expect((await open(target, 80, never)).kind).toBe('connected');
    expect(await open(target, 80, never)).toEqual({ kind: 'too-many-connections' });
    const next = generation(target.agent.connectPort);
    expect((await open(next, 80, never)).kind).toBe('connected');
    made[0]?.destroy();
    await clock.advance(0);
    expect((await open(target, 80, never)).kind).toBe('connected');

    const left = await open(next, 80, never);
    if (left.kind !== 'connected') throw new Error(left.kind);
    expect(await open(next, 80, never)).toEqual({ kind: 'too-many-connections' });
    left.leave();
    expect((await open(next, 80, never)).kind).toBe('connected');
    // A service that does not end its side has a second.
    expect(left.stream.destroyed).toBe(false);
    await clock.advance(1_000);
    expect(left.stream.destroyed).toBe(true);
    expect(await open(next, 80, never)).toEqual({ kind: 'too-many-connections' });

    const failing = generation(() => Promise.reject(new PlatformError('sandbox_unavailable', 'gone')));
    for (let count = 0; count < 5; count++) expect((await open(failing, 80, never)).kind).toBe('not-found');
  });
});
