import { describe, expect, it } from 'vitest';
import type { Agent, GuestProcess, ProcessOutput, SpawnRequest } from '../agent.ts';
import { FLAGS, FRAME, LIMITS } from '../generated/protocol.ts';
import { connectScriptedAgent, type ScriptedGuest } from '../testing/scripted-guest.ts';

const REQUEST: SpawnRequest = {
  ...{ user: 'user', argv: ['cat'], env: { A: '1' }, cwd: '', defaultCwd: '/home/user' },
  ...{ stdin: true, tag: 'tag', config: Uint8Array.of(1, 2), killAfterMs: 0 },
};

async function spawned(
  agent: Agent,
  guest: ScriptedGuest,
  request: SpawnRequest = REQUEST,
): Promise<{ readonly process: GuestProcess; readonly id: number }> {
  const spawning = agent.spawn(request);
  const { stream } = await guest.request('spawn');
  guest.respond(stream, 'spawn', { pid: 321, uid: 1000, gid: 1000 });
  return { process: await spawning, id: stream };
}

const exitEvent = (totals: { readonly out?: bigint; readonly err?: bigint } = {}) => ({
  ...{ code: 3, signal: 0, reason: 0 },
  stdoutTotal: totals.out ?? 0n,
  stderrTotal: totals.err ?? 0n,
});

describe('a process', () => {
  it('is requested with its environment, flags and terminal size', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const spawning = agent.spawn({ ...REQUEST, pty: { cols: 80, rows: 24 }, killAfterMs: 1500 });
    const { stream, body } = await guest.request('spawn');
    expect(body).toMatchObject({
      ...{ user: 'user', argv: ['cat'], env: ['A=1'], cols: 80, rows: 24, killAfterMs: 1500n },
      flags: FLAGS.SPAWN_PTY | FLAGS.SPAWN_STDIN,
    });
    guest.respond(stream, 'spawn', { pid: 9, uid: 0, gid: 0 });
    expect(await spawning).toMatchObject({ id: stream, pid: 9, pty: true, stdinOpen: true, tag: 'tag' });
    await expect(agent.spawn({ ...REQUEST, env: { 'A=B': 'c' } })).rejects.toMatchObject({ code: 'invalid_argument' });
  });

  it('gets no credit before somebody takes its output, and exactly one window then', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { process, id } = await spawned(agent, guest);
    expect(guest.pending.filter(({ type, stream }) => type === FRAME.CREDIT && stream > 0)).toEqual([]);
    process.onOutput(() => {});
    for (const stream of [id + 2, id + 3]) {
      expect((await guest.take(FRAME.CREDIT, stream)).payload.readUInt32LE()).toBe(LIMITS.INTERACTIVE_WINDOW);
    }
    expect(() => process.onOutput(() => {})).toThrow(expect.objectContaining({ code: 'conflict' }));
  });

  it('that sends without credit breaks the protocol: nothing is buffered for a missing consumer', async () => {
    const { agent, guest } = await connectScriptedAgent();
    const { process, id } = await spawned(agent, guest);
    guest.send(id + 2, FRAME.DATA, new Uint8Array(1));
    expect((await agent.closed).kind).toBe('protocol');
    await expect(process.exit).rejects.toMatchObject({ code: 'sandbox_unavailable' });
    await expect(process.outputEnd).rejects.toMatchObject({ code: 'sandbox_unavailable' });
  });

  it('whose exit arrives together with the answer to its spawn is not missed', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const spawning = agent.spawn(REQUEST);
    const { stream } = await guest.request('spawn');
    guest.respond(stream, 'spawn', { pid: 321, uid: 1000, gid: 1000 });
    guest.send(stream + 2, FRAME.EOF);
    guest.send(stream + 3, FRAME.EOF);
    guest.event(stream, 'exit', exitEvent());
    const process = await spawning;
    expect(await process.exit).toEqual({
      ...{ code: 3, signal: 0, reason: 'ended', stdoutTotal: 0n, stderrTotal: 0n },
    });
    await process.outputEnd;
  });

  it('credit returns only for bytes whose handler has settled, and one slow handler delays nobody else', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { process, id } = await spawned(agent, guest);
    const handlers: PromiseWithResolvers<void>[] = [];
    process.onOutput(() => {
      const handler = Promise.withResolvers<void>();
      handlers.push(handler);
      return handler.promise;
    });
    await guest.take(FRAME.CREDIT, id + 2);
    await guest.take(FRAME.CREDIT, id + 3);
    for (let index = 0; index < 4; index++) {
      guest.send(id + 2, FRAME.DATA, new Uint8Array(LIMITS.INTERACTIVE_WINDOW / 4));
    }
    const answer = agent.ping();
    guest.respond((await guest.request('ping')).stream, 'ping', { monotonicNs: 1n });
    await answer;
    expect(handlers.length).toBe(1);
    expect(process.received('stdout')).toBe(BigInt(LIMITS.INTERACTIVE_WINDOW / 4));
    expect(guest.pending.filter(({ stream }) => stream === id + 2)).toEqual([]);
    handlers[0]?.resolve();
    const credit = await guest.take(FRAME.CREDIT, id + 2);
    expect(credit.payload.readUInt32LE()).toBe(LIMITS.INTERACTIVE_WINDOW / 4);
  });

  it('hands output on in order, in turns between the streams, and ends when all of it settled', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { process, id } = await spawned(agent, guest);
    const seen: string[] = [];
    const gate = Promise.withResolvers<void>();
    process.onOutput(async ({ stream, data }: ProcessOutput) => {
      seen.push(`${stream}:${Buffer.from(data).toString()}`);
      await gate.promise;
    });
    await guest.take(FRAME.CREDIT, id + 3);
    guest.send(id + 2, FRAME.DATA, Buffer.from('a'));
    guest.send(id + 2, FRAME.DATA, Buffer.from('b'));
    guest.send(id + 2, FRAME.DATA, Buffer.from('c'));
    guest.send(id + 3, FRAME.DATA, Buffer.from('x'));
    guest.send(id + 2, FRAME.EOF);
    guest.send(id + 3, FRAME.EOF);
    guest.event(id, 'exit', exitEvent({ out: 3n, err: 1n }));
    await process.exit;
    let ended = false;
    const end = process.outputEnd.then(() => {
      ended = true;
    });
    expect(ended).toBe(false);
    gate.resolve();
    await end;
    expect(seen).toEqual(['stdout:a', 'stdout:bc', 'stderr:x']);
    expect([process.received('stdout'), process.received('stderr')]).toEqual([3n, 1n]);
  });

  it('a consumer that fails neither stops the process nor the channel', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { process, id } = await spawned(agent, guest);
    let calls = 0;
    process.onOutput(() => {
      calls++;
      if (calls === 1) throw new Error('first');
      return Promise.reject(new Error('later'));
    });
    await guest.take(FRAME.CREDIT, id + 2);
    const bytes = LIMITS.INTERACTIVE_WINDOW / 4;
    for (let index = 0; index < 3; index++) guest.send(id + 2, FRAME.DATA, new Uint8Array(bytes));
    for (let index = 0; index < 3; index++) {
      expect((await guest.take(FRAME.CREDIT, id + 2)).payload.readUInt32LE()).toBe(bytes);
    }
    expect(calls).toBe(3);
  });

  it('takes stdin against credit', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { process, id } = await spawned(agent, guest);
    let accepted = false;
    const writing = process.writeStdin(new Uint8Array(LIMITS.STREAM_WINDOW + 10)).then(() => {
      accepted = true;
    });
    for (let got = 0; got < LIMITS.STREAM_WINDOW; ) got += (await guest.take(FRAME.DATA, id + 1)).payload.length;
    expect(accepted).toBe(false);
    guest.credit(id + 1, 100);
    expect((await guest.take(FRAME.DATA, id + 1)).payload.length).toBe(10);
    await writing;
    await process.closeStdin();
    await guest.take(FRAME.EOF, id + 1);
    expect(process.stdinOpen).toBe(false);
    await process.closeStdin();
    await expect(process.writeStdin(new Uint8Array(1))).rejects.toMatchObject({ code: 'conflict' });
  });

  it('stdin waits are ended by their signal, by the exit, and by the reader going away', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const full = new Uint8Array(LIMITS.STREAM_WINDOW + 1);
    const first = await spawned(agent, guest);
    const controller = new AbortController();
    const given = first.process.writeStdin(full, controller.signal);
    controller.abort();
    await expect(given).rejects.toMatchObject({ code: 'canceled' });
    const waiting = first.process.writeStdin(full);
    guest.event(first.id, 'exit', exitEvent());
    await expect(waiting).rejects.toMatchObject({ code: 'conflict', message: 'the process has exited' });

    const second = await spawned(agent, guest);
    const stuck = second.process.writeStdin(full);
    guest.send(second.id + 1, FRAME.RESET, new Uint8Array(4));
    await expect(stuck).rejects.toMatchObject({ code: 'conflict', message: 'stdin is closed' });
    await second.process.closeStdin();
  });

  it('without stdin refuses to be written to', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { process } = await spawned(agent, guest, { ...REQUEST, stdin: false });
    expect(process.stdinOpen).toBe(false);
    await expect(process.writeStdin(new Uint8Array(1))).rejects.toMatchObject({ code: 'conflict' });
  });

  it('whose spawn is given up is reset, which kills it', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const controller = new AbortController();
    const spawning = agent.spawn(REQUEST, controller.signal);
    const { stream } = await guest.request('spawn');
    controller.abort();
    await expect(spawning).rejects.toMatchObject({ code: 'canceled' });
    await guest.take(FRAME.RESET, stream);
  });

  it('is signalled and resized by its id', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { process, id } = await spawned(agent, guest);
    const answers = [process.signal(15), process.resize({ cols: 100, rows: 50 })];
    const signal = await guest.request('signal');
    expect(signal.body).toEqual({ process: id, signal: 15 });
    guest.respond(signal.stream, 'signal', {});
    const resize = await guest.request('resize');
    expect(resize.body).toEqual({ process: id, cols: 100, rows: 50 });
    guest.fail(resize.stream, 'INVALID', 'not a terminal', 25);
    await answers[0];
    await expect(answers[1]).rejects.toMatchObject({ code: 'invalid_argument', details: { status: 'INVALID' } });
  });
});

describe('processes of a former epoch', () => {
  const row = {
    ...{ id: 16, pid: 7, tag: 'old', config: Uint8Array.of(9), flags: 0, stdinOpen: true },
    ...{ stdoutSent: 500n, stderrSent: 5n, exited: false, exitCode: 0, exitSignal: 0 },
  };

  it('are found again, as the same object each time, with the bytes they had sent', async () => {
    const { agent, guest } = await connectScriptedAgent({ processes: [row] });
    await using _agent = agent;
    const listing = agent.listProcesses();
    guest.respond((await guest.request('listProcesses')).stream, 'listProcesses', { processes: [row] });
    const [process] = await listing;
    expect(process).toMatchObject({ id: 16, pid: 7, tag: 'old', stdinOpen: true });
    expect(process?.received('stdout')).toBe(500n);
    process?.onOutput(() => {});
    await guest.take(FRAME.CREDIT, 18);
    const again = agent.listProcesses();
    guest.respond((await guest.request('listProcesses')).stream, 'listProcesses', { processes: [row] });
    expect((await again)[0]).toBe(process);
  });

  it('that had exited and ended their output are complete at once', async () => {
    const ended = FLAGS.STDOUT_ENDED | FLAGS.STDERR_ENDED;
    const { agent, guest } = await connectScriptedAgent({
      processes: [{ ...row, flags: ended, stdinOpen: false, exited: true, exitCode: 4 }],
    });
    await using _agent = agent;
    const listing = agent.listProcesses();
    guest.respond((await guest.request('listProcesses')).stream, 'listProcesses', {
      processes: [{ ...row, flags: ended, stdinOpen: false, exited: true, exitCode: 4 }],
    });
    const [process] = await listing;
    expect(await process?.exit).toMatchObject({ code: 4, signal: 0, stdoutTotal: 500n });
    await process?.outputEnd;
  });
});
