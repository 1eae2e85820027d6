import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, it } from 'vitest';
import { FRAME, LIMITS } from '../generated/protocol.ts';
import { connectScriptedAgent } from '../testing/scripted-guest.ts';

const ACTIVATION = {
  ...{ key: new Uint8Array(16).fill(3), generation: 'g2', hostname: 'box' },
  files: [{ path: '/etc/hosts', mode: 0o644, content: 'hosts' }],
};
const SPAWN = {
  ...{ user: 'user', argv: ['x'], env: {}, cwd: '', defaultCwd: '', stdin: true, tag: '' },
  ...{ config: new Uint8Array(0), killAfterMs: 0 },
};
/** Lets everything that is ready run; what was to be sent has arrived then. */
const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

describe('quiesce and activate', () => {
  it('between them the host sends nothing, and activate goes first', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const spawning = agent.spawn(SPAWN);
    const { stream } = await guest.request('spawn');
    guest.respond(stream, 'spawn', { pid: 1, uid: 0, gid: 0 });
    const process = await spawning;
    process.onOutput(() => {});
    await guest.take(FRAME.CREDIT, stream + 2);
    await guest.take(FRAME.CREDIT, stream + 3);
    await guest.take(FRAME.CREDIT, 0);

    const quiescing = agent.quiesce(5000);
    const writing = process.writeStdin(Buffer.from('held'));
    const pinging = agent.ping();
    const quiesce = await guest.request('quiesce');
    // Output of before the freeze: consumed, its credit stays here.
    guest.send(stream + 2, FRAME.DATA, new Uint8Array(LIMITS.INTERACTIVE_WINDOW));
    guest.respond(quiesce.stream, 'quiesce', { processes: 2, frozenUs: 1500n });
    expect(await quiescing).toEqual({ processes: 2, frozenMs: 1.5 });
    await turn();
    await turn();
    expect(guest.pending).toEqual([]);

    const activating = agent.activate({ ...ACTIVATION, resetStreams: false });
    const activate = await guest.request('activate');
    expect(activate.body).toMatchObject({ generation: 'g2', resetStreams: false, hostname: 'box' });
    expect(activate.body.entropy.length).toBeGreaterThanOrEqual(32);
    expect(activate.body.files).toEqual([
      { path: '/etc/hosts', mode: 0o644, content: new TextEncoder().encode('hosts') },
    ]);
    const ping = await guest.request('ping');
    await guest.take(FRAME.DATA, stream + 1);
    await writing;
    expect(guest.pending).toEqual([]);
    guest.respond(activate.stream, 'activate', { wallNs: 1n });
    await activating;
    expect((await guest.take(FRAME.CREDIT, 0)).payload.readUInt32LE()).toBe(LIMITS.CHANNEL_WINDOW);
    expect((await guest.take(FRAME.CREDIT, stream + 2)).payload.readUInt32LE()).toBe(LIMITS.INTERACTIVE_WINDOW);
    expect((await guest.take(FRAME.CREDIT, stream + 3)).payload.readUInt32LE()).toBe(LIMITS.INTERACTIVE_WINDOW);
    guest.respond(ping.stream, 'ping', { monotonicNs: 1n });
    await pinging;
  });

  it('a quiesce that fails lets everything go on', async () => {
    const clock = createFakeClock();
    const { agent, guest } = await connectScriptedAgent({ clock });
    await using _agent = agent;
    const first = expect(agent.quiesce(5000)).rejects.toMatchObject({ code: 'deadline_exceeded' });
    await expect(agent.quiesce(5000)).rejects.toMatchObject({ code: 'conflict' });
    const { stream, deadlineMs } = await guest.request('quiesce');
    const pinging = agent.ping();
    await clock.advance(deadlineMs);
    await first;
    await guest.take(FRAME.RESET, stream);
    guest.respond((await guest.request('ping')).stream, 'ping', { monotonicNs: 1n });
    await pinging;
    const second = expect(agent.quiesce(5000)).rejects.toMatchObject({ code: 'internal' });
    guest.fail((await guest.request('quiesce')).stream, 'IO', 'cgroup', 5);
    await second;
  });

  it('a request that was given up while it was held never leaves', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const quiescing = agent.quiesce(5000);
    guest.respond((await guest.request('quiesce')).stream, 'quiesce', { processes: 0, frozenUs: 0n });
    await quiescing;
    const controller = new AbortController();
    const removing = agent.remove('/precious', controller.signal);
    controller.abort();
    await expect(removing).rejects.toMatchObject({ code: 'canceled' });
    const activating = agent.activate({ ...ACTIVATION, resetStreams: false });
    guest.respond((await guest.request('activate')).stream, 'activate', { wallNs: 1n });
    await activating;
    await turn();
    expect(guest.pending.filter(({ type }) => type === FRAME.REQUEST || type === FRAME.RESET)).toEqual([]);
  });

  it('a new generation ends connections and transfers of the former one, but not its processes', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const spawning = agent.spawn(SPAWN);
    const spawn = await guest.request('spawn');
    guest.respond(spawn.stream, 'spawn', { pid: 1, uid: 0, gid: 0 });
    const process = await spawning;
    const connecting = agent.connectPort(80);
    guest.respond((await guest.request('connectPort')).stream, 'connectPort', { address: '127.0.0.1' });
    const connection = await connecting;
    const ended = new Promise((resolve) => connection.once('error', resolve));
    const stat = expect(agent.stat('/')).rejects.toMatchObject({ code: 'canceled' });
    await guest.request('stat');

    const activating = agent.activate({ ...ACTIVATION, resetStreams: true });
    const later = agent.ping();
    const activate = await guest.request('activate');
    const ping = await guest.request('ping');
    guest.respond(activate.stream, 'activate', { wallNs: 1n });
    await activating;
    expect(await ended).toMatchObject({ code: 'canceled' });
    await stat;
    guest.respond(ping.stream, 'ping', { monotonicNs: 1n });
    await later;
    guest.event(spawn.stream, 'exit', { code: 0, signal: 0, reason: 0, stdoutTotal: 0n, stderrTotal: 0n });
    expect(await process.exit).toMatchObject({ code: 0 });
  });

  it('a failed activation closes the channel: nobody knows the credit any more', async () => {
    const { agent, guest } = await connectScriptedAgent();
    const activating = expect(agent.activate({ ...ACTIVATION, resetStreams: false })).rejects.toMatchObject({
      code: 'permission_denied',
    });
    guest.fail((await guest.request('activate')).stream, 'PERMISSION', 'clock', 1);
    await activating;
    expect((await agent.closed).kind).toBe('closed');
  });
});

describe('clock', () => {
  it('is stepped to the host and compared with it', async () => {
    const clock = createFakeClock(1_700_000_000_123);
    const { agent, guest } = await connectScriptedAgent({ clock });
    await using _agent = agent;
    const stepping = agent.setClock();
    const step = await guest.request('setClock');
    expect(step.body.wallNs).toBe(1_700_000_000_123_000_000n);
    guest.respond(step.stream, 'setClock', { skewNs: -2_500_000n });
    expect(await stepping).toBe(-2.5);
    const asking = agent.clockSkew();
    const read = await guest.request('setClock');
    expect(read.body.wallNs).toBe(0n);
    guest.respond(read.stream, 'setClock', { skewNs: 1_700_000_000_133_000_000n });
    expect(await asking).toBe(10);
  });
});
