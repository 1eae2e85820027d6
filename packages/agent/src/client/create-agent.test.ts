import { SILENT_LOG } from '@agentenv/core';
import { createFakeClock, createSeededRandom } from '@agentenv/core/testing';
import { describe, expect, it } from 'vitest';
import { FRAME, LIMITS, STATUS } from '../generated/protocol.ts';
import { connectScriptedAgent, createScriptedGuest, type ScriptedGuest } from '../testing/scripted-guest.ts';
import { testClock } from '../testing/test-clock.ts';
import { createAgent } from './create-agent.ts';

const KEY = Uint8Array.from({ length: 16 }, (_value, index) => index + 1);

function options(socket: ReturnType<typeof createScriptedGuest>['socket'], clock = testClock) {
  return { socket, key: KEY, clock, rng: createSeededRandom(3), log: SILENT_LOG };
}

const gone = expect.objectContaining({ code: 'sandbox_unavailable' });

describe('connecting', () => {
  it('sends key and a nonce without zero bytes, then asks for the processes and grants channel credit', async () => {
    const guest = createScriptedGuest();
    const connecting = createAgent(options(guest.socket));
    const { key, nonce } = await guest.resync();
    expect([...key]).toEqual([...KEY]);
    expect([...nonce]).not.toContain(0);
    const credit = await guest.take(FRAME.CREDIT);
    expect([credit.stream, credit.payload.readUInt32LE()]).toEqual([0, LIMITS.CHANNEL_WINDOW]);
    const list = await guest.request('listProcesses');
    guest.respond(list.stream, 'listProcesses', { processes: [] });
    await (await connecting)[Symbol.asyncDispose]();
  });

  it('throws away what the former epoch left behind', async () => {
    const guest = createScriptedGuest();
    guest.raw(Buffer.alloc(200_000, 0xa7));
    const connecting = createAgent(options(guest.socket));
    await guest.resync();
    const list = await guest.request('listProcesses');
    guest.respond(list.stream, 'listProcesses', { processes: [] });
    await using agent = await connecting;
    const answer = agent.ping();
    guest.respond((await guest.request('ping')).stream, 'ping', { monotonicNs: 5n });
    expect(await answer).toEqual({ monotonicNs: 5n });
  });

  it('gives up when the guest does not answer in time', async () => {
    const clock = createFakeClock();
    const guest = createScriptedGuest();
    const connecting = createAgent({ ...options(guest.socket, clock), resyncTimeoutMs: 500 });
    const outcome = expect(connecting).rejects.toEqual(gone);
    await clock.advance(500);
    await outcome;
    expect(guest.socket.destroyed).toBe(true);
    expect(clock.pendingTimers).toBe(0);
  });

  it('is given up by its signal', async () => {
    const guest = createScriptedGuest();
    const controller = new AbortController();
    const connecting = createAgent(options(guest.socket), controller.signal);
    controller.abort();
    await expect(connecting).rejects.toMatchObject({ code: 'canceled' });
    expect(guest.socket.destroyed).toBe(true);
  });

  it('fails when the guest ends the connection or lists nonsense', async () => {
    const ended = createScriptedGuest();
    const first = createAgent(options(ended.socket));
    ended.end();
    await expect(first).rejects.toEqual(gone);

    const lying = createScriptedGuest();
    const second = createAgent(options(lying.socket));
    await lying.resync();
    const list = await lying.request('listProcesses');
    const row = { id: 17, pid: 1, tag: '', config: new Uint8Array(0), flags: 0, stdinOpen: false } as const;
    const rest = { stdoutSent: 0n, stderrSent: 0n, exited: false, exitCode: 0, exitSignal: 0 } as const;
    lying.respond(list.stream, 'listProcesses', { processes: [{ ...row, ...rest }] });
    await expect(second).rejects.toEqual(gone);
    expect(lying.socket.destroyed).toBe(true);
  });

  it('never takes a stream id the guest remembers', async () => {
    const row = { pid: 1, tag: 't', config: new Uint8Array(0), flags: 0, stdinOpen: false } as const;
    const rest = { stdoutSent: 0n, stderrSent: 0n, exited: false, exitCode: 0, exitSignal: 0 } as const;
    const { agent, guest } = await connectScriptedAgent({ processes: [{ id: 4000, ...row, ...rest }] });
    await using _agent = agent;
    const answer = agent.ping();
    const { stream } = await guest.request('ping');
    expect(stream).toBe(4004);
    guest.respond(stream, 'ping', { monotonicNs: 0n });
    await answer;
  });
});

describe('calls', () => {
  it('reject with the status of the guest', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const answer = agent.stat('/nowhere');
    guest.fail((await guest.request('stat')).stream, 'NOT_FOUND', 'no such path', 2);
    await expect(answer).rejects.toMatchObject({
      code: 'not_found',
      message: 'no such path',
      details: { status: 'NOT_FOUND', errno: 2 },
    });
  });

  it('are matched by stream, not by order', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const [first, second] = [agent.remove('/a'), agent.remove('/b')];
    const requests = [await guest.request('remove'), await guest.request('remove')];
    guest.respond(requests[1]?.stream ?? 0, 'remove', { removed: true });
    guest.respond(requests[0]?.stream ?? 0, 'remove', { removed: false });
    expect(await first).toEqual({ removed: false });
    expect(await second).toEqual({ removed: true });
  });

  it('that are not answered in time reject and end the work in the guest', async () => {
    const clock = createFakeClock();
    const { agent, guest } = await connectScriptedAgent({ clock });
    await using _agent = agent;
    const answer = agent.ping();
    const outcome = expect(answer).rejects.toMatchObject({ code: 'deadline_exceeded' });
    const { stream, deadlineMs } = await guest.request('ping');
    await clock.advance(deadlineMs);
    await outcome;
    const reset = await guest.take(FRAME.RESET, stream);
    expect(reset.payload.readUInt32LE()).toBe(STATUS.CANCELED);
    guest.respond(stream, 'ping', { monotonicNs: 1n });
    const next = agent.ping();
    guest.respond((await guest.request('ping')).stream, 'ping', { monotonicNs: 2n });
    expect(await next).toEqual({ monotonicNs: 2n });
    expect(clock.pendingTimers).toBe(0);
  });

  it('are ended by their signal, in the guest too, and leave no listener on it', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const controller = new AbortController();
    const answer = agent.listDir('/', { depth: 1, max: 10 }, controller.signal);
    const { stream } = await guest.request('listDir');
    controller.abort();
    await expect(answer).rejects.toMatchObject({ code: 'canceled' });
    await guest.take(FRAME.RESET, stream);
    await expect(agent.stat('/', controller.signal)).rejects.toMatchObject({ code: 'canceled' });
  });

  it('refuse arguments that cannot be sent without touching the channel', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    await expect(agent.stat('/a\0b')).rejects.toMatchObject({ code: 'invalid_argument' });
    await expect(agent.connectPort(70_000)).rejects.toMatchObject({ code: 'invalid_argument' });
    await expect(agent.stat('/'.repeat(2_000_000))).rejects.toMatchObject({ code: 'invalid_argument' });
    expect(guest.pending.filter(({ type }) => type === FRAME.REQUEST)).toEqual([]);
  });

  it('reject at once when too many are waiting', async () => {
    const { agent, guest } = await connectScriptedAgent();
    const waiting = Array.from({ length: 4096 }, () => agent.ping());
    const outcomes = Promise.allSettled(waiting);
    await expect(agent.ping()).rejects.toMatchObject({ code: 'capacity' });
    guest.end();
    expect((await outcomes).every(({ status }) => status === 'rejected')).toBe(true);
  });

  it('all reject when the channel is lost, and so do later ones', async () => {
    const { agent, guest } = await connectScriptedAgent();
    const waiting = [agent.ping(), agent.stat('/'), agent.connectPort(80)];
    const outcomes = Promise.allSettled(waiting);
    await guest.request('connectPort');
    guest.end();
    expect((await outcomes).map((outcome) => outcome.status === 'rejected' && outcome.reason)).toEqual([
      gone,
      gone,
      gone,
    ]);
    expect(await agent.closed).toMatchObject({ kind: 'disconnected' });
    await expect(agent.ping()).rejects.toEqual(gone);
  });

  it('end with the agent', async () => {
    const { agent, guest } = await connectScriptedAgent();
    const answer = expect(agent.ping()).rejects.toEqual(gone);
    await agent[Symbol.asyncDispose]();
    await answer;
    expect(await agent.closed).toEqual({ kind: 'closed', reason: 'closed by the host' });
    expect(guest.socket.destroyed).toBe(true);
  });
});

const ENTRY = {
  ...{ path: '/', type: 2, size: 0n, mode: 0o755, uid: 0, gid: 0, owner: 'root', group: 'root', mtimeNs: 0n },
  ...{ linkTarget: '', targetType: 0, targetMode: 0, inode: 2n, xattrs: [] },
};

describe('a guest that breaks the protocol', () => {
  const violations: readonly (readonly [string, string, (guest: ScriptedGuest, stream: number) => void])[] = [
    [
      'a body that does not match its layout',
      'body ends',
      (guest, stream) => guest.send(stream, FRAME.RESPONSE, new Uint8Array(6)),
    ],
    [
      'two entries for one path',
      '2 entries instead of one',
      (guest, stream) => guest.respond(stream, 'stat', { entry: [ENTRY, ENTRY] }),
    ],
    [
      'an entry of an unknown type',
      'entry type 9',
      (guest, stream) => guest.respond(stream, 'stat', { entry: [{ ...ENTRY, type: 9 }] }),
    ],
    [
      'DATA that was never allowed',
      'unexpected DATA',
      (guest, stream) => guest.send(stream, FRAME.DATA, new Uint8Array(1)),
    ],
    [
      'an EVENT where none belongs',
      'unexpected EVENT',
      (guest, stream) => guest.send(stream, FRAME.EVENT, new Uint8Array(2)),
    ],
    ['an EOF where none belongs', 'unexpected EOF', (guest, stream) => guest.send(stream, FRAME.EOF)],
    ['an unknown frame type', 'frame type 99', (guest) => guest.raw(Uint8Array.of(0, 0, 0, 0, 1, 0, 0, 0, 99))],
  ];

  it.each(violations)(
    'by %s: the channel closes with the reason and every call rejects',
    async (_what, reason, act) => {
      const { agent, guest } = await connectScriptedAgent();
      const outcome = expect(agent.stat('/')).rejects.toEqual(gone);
      act(guest, (await guest.request('stat')).stream);
      await outcome;
      const closed = await agent.closed;
      expect(closed.kind).toBe('protocol');
      expect(closed.reason).toContain(reason);
      expect(guest.socket.destroyed).toBe(true);
    },
  );

  it('frames of streams that no longer exist are not an error', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    guest.send(400, FRAME.DATA, new Uint8Array(70));
    guest.send(400, FRAME.EOF);
    guest.credit(400, 5);
    guest.send(400, FRAME.RESPONSE, new Uint8Array(4));
    const answer = agent.ping();
    guest.respond((await guest.request('ping')).stream, 'ping', { monotonicNs: 2n });
    expect(await answer).toEqual({ monotonicNs: 2n });
  });

  it('channel credit returns for every byte that was read, whosever it was', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    await guest.take(FRAME.CREDIT, 0);
    let returned = 0;
    for (let sent = 0; sent < 4 * LIMITS.CHANNEL_WINDOW; sent += LIMITS.MAX_DATA) {
      guest.send(400, FRAME.DATA, new Uint8Array(LIMITS.MAX_DATA));
      if (sent % LIMITS.CHANNEL_WINDOW === LIMITS.CHANNEL_WINDOW / 2) {
        returned += (await guest.take(FRAME.CREDIT, 0)).payload.readUInt32LE();
      }
    }
    while (returned < 4 * LIMITS.CHANNEL_WINDOW) {
      returned += (await guest.take(FRAME.CREDIT, 0)).payload.readUInt32LE();
    }
    expect(returned).toBe(4 * LIMITS.CHANNEL_WINDOW);
  });
});
