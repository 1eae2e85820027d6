import { createFakeClock } from '@agentenv/core/testing';
import { describe, expect, it } from 'vitest';
import type { Agent, GuestEntry } from '../agent.ts';
import { FRAME, LIMITS, STATUS } from '../generated/protocol.ts';
import { connectScriptedAgent, type ScriptedGuest, u32Bytes } from '../testing/scripted-guest.ts';

const ENTRY = {
  ...{ path: '/f', type: 1, size: 10n, mode: 0o644, uid: 0, gid: 0, owner: 'root', group: 'root', mtimeNs: 5n },
  ...{ linkTarget: '', targetType: 0, targetMode: 0, inode: 2n, xattrs: [{ name: 'a', value: Uint8Array.of(1) }] },
};
const TARGET = { path: '/f', uid: 1, gid: 2, mode: 0o644, xattrs: new Map([['k', Uint8Array.of(7)]]) };

interface Reading {
  readonly stream: number;
  readonly entry: GuestEntry;
  readonly body: AsyncIterable<Uint8Array>;
}

async function reading(agent: Agent, guest: ScriptedGuest, signal?: AbortSignal): Promise<Reading> {
  const opening = agent.readFile('/f', undefined, signal);
  const { stream } = await guest.request('readFile');
  guest.respond(stream, 'readFile', { entry: [ENTRY] });
  return { stream, ...(await opening) };
}

async function collect(body: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of body) chunks.push(chunk);
  return Buffer.concat(chunks);
}

describe('readFile', () => {
  it('asks for the range, converts the entry and yields the bytes', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const opening = agent.readFile('/f', { offset: 3n, length: 4n });
    const { stream, body, deadlineMs } = await guest.request('readFile');
    expect(body).toEqual({ path: '/f', offset: 3n, length: 4n, flags: 0 });
    expect(deadlineMs).toBe(0);
    guest.respond(stream, 'readFile', { entry: [ENTRY] });
    const file = await opening;
    expect(file.entry).toMatchObject({ type: 'file', size: 10n, link: undefined });
    expect(file.entry.xattrs).toEqual(new Map([['a', Uint8Array.of(1)]]));
    expect((await guest.take(FRAME.CREDIT, stream)).payload.readUInt32LE()).toBe(LIMITS.STREAM_WINDOW);
    guest.send(stream, FRAME.DATA, Buffer.from('hello '));
    guest.send(stream, FRAME.DATA, Buffer.from('world'));
    guest.send(stream, FRAME.EOF);
    expect((await collect(file.body)).toString()).toBe('hello world');
  });

  it('returns credit only as the reader takes the bytes', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { stream, body } = await reading(agent, guest);
    await guest.take(FRAME.CREDIT, stream);
    const piece = LIMITS.STREAM_WINDOW / 4;
    for (let index = 0; index < 4; index++) guest.send(stream, FRAME.DATA, Buffer.alloc(piece));
    const ping = agent.ping();
    guest.respond((await guest.request('ping')).stream, 'ping', { monotonicNs: 1n });
    await ping;
    expect(guest.pending.filter((frame) => frame.stream === stream)).toEqual([]);
    const iterator = body[Symbol.asyncIterator]();
    for (let taken = 0; taken < piece; ) taken += (await iterator.next()).value?.length ?? piece;
    expect((await guest.take(FRAME.CREDIT, stream)).payload.readUInt32LE()).toBeGreaterThanOrEqual(piece);
    await iterator.return?.();
  });

  it('leaving the loop early, or before it began, ends the transfer in the guest', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const first = await reading(agent, guest);
    guest.send(first.stream, FRAME.DATA, Buffer.alloc(100));
    for await (const _chunk of first.body) break;
    await guest.take(FRAME.RESET, first.stream);
    const second = await reading(agent, guest);
    const iterator = second.body[Symbol.asyncIterator]();
    await iterator.return?.();
    await guest.take(FRAME.RESET, second.stream);
    expect(await iterator.next()).toEqual({ done: true, value: undefined });
  });

  it('fails in the middle when the guest resets it, the signal aborts, or the channel is lost', async () => {
    const { agent, guest } = await connectScriptedAgent();
    const first = await reading(agent, guest);
    guest.send(first.stream, FRAME.DATA, Buffer.alloc(5));
    guest.send(first.stream, FRAME.RESET, u32Bytes(STATUS.IO));
    await expect(collect(first.body)).rejects.toMatchObject({ code: 'internal', details: { status: 'IO' } });
    const controller = new AbortController();
    const second = await reading(agent, guest, controller.signal);
    const collecting = expect(collect(second.body)).rejects.toMatchObject({ code: 'canceled' });
    controller.abort();
    await collecting;
    await guest.take(FRAME.RESET, second.stream);
    const third = await reading(agent, guest);
    const lost = expect(collect(third.body)).rejects.toMatchObject({ code: 'sandbox_unavailable' });
    guest.end();
    await lost;
  });

  it('gives up a guest that has credit and sends nothing', async () => {
    const clock = createFakeClock();
    const { agent, guest } = await connectScriptedAgent({ clock });
    await using _agent = agent;
    const { stream, body } = await reading(agent, guest);
    const collecting = expect(collect(body)).rejects.toMatchObject({ code: 'deadline_exceeded' });
    await clock.advance(120_000);
    await collecting;
    await guest.take(FRAME.RESET, stream);
    expect(clock.pendingTimers).toBe(0);
  });
});

async function* bodyOf(...chunks: readonly Uint8Array[]): AsyncGenerator<Uint8Array> {
  yield* chunks;
}

describe('writeFile', () => {
  it('sends the body against credit, then EOF, and resolves with the size', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const writing = agent.writeFile(TARGET, bodyOf(Buffer.alloc(LIMITS.STREAM_WINDOW), Buffer.from('tail')));
    const { stream, body, deadlineMs } = await guest.request('writeFile');
    expect(body).toMatchObject({ path: '/f', uid: 1, gid: 2, mode: 0o644 });
    expect(body.xattrs).toEqual([{ name: 'k', value: Uint8Array.of(7) }]);
    expect(deadlineMs).toBe(0);
    for (let got = 0; got < LIMITS.STREAM_WINDOW; ) got += (await guest.take(FRAME.DATA, stream)).payload.length;
    expect(guest.pending.filter((frame) => frame.stream === stream)).toEqual([]);
    guest.credit(stream, 100);
    expect((await guest.take(FRAME.DATA, stream)).payload.toString()).toBe('tail');
    await guest.take(FRAME.EOF, stream);
    guest.respond(stream, 'writeFile', { size: 9n });
    expect(await writing).toEqual({ size: 9n });
  });

  it('stops at once when the guest refuses, although the source has nothing to give', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    let stopped = false;
    const source: AsyncIterable<Uint8Array> = {
      [Symbol.asyncIterator]: () => ({
        next: () => new Promise(() => {}),
        async return() {
          stopped = true;
          return { done: true, value: undefined };
        },
      }),
    };
    const writing = agent.writeFile(TARGET, source);
    guest.fail((await guest.request('writeFile')).stream, 'NO_SPACE', 'full', 28);
    await expect(writing).rejects.toMatchObject({ code: 'no_space', message: 'full' });
    expect(stopped).toBe(true);
  });

  it('stops while it waits for credit when the guest refuses', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const writing = agent.writeFile(TARGET, bodyOf(Buffer.alloc(LIMITS.STREAM_WINDOW + 1)));
    const outcome = expect(writing).rejects.toMatchObject({ code: 'no_space' });
    const { stream } = await guest.request('writeFile');
    await guest.take(FRAME.DATA, stream);
    guest.fail(stream, 'NO_SPACE', 'full', 28);
    await outcome;
  });

  it('a source that fails ends the transfer in the guest, so that nothing is moved in place', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const writing = agent.writeFile(
      TARGET,
      (async function* () {
        yield Buffer.from('half');
        throw new Error('client went away');
      })(),
    );
    const outcome = expect(writing).rejects.toThrow('client went away');
    const { stream } = await guest.request('writeFile');
    await outcome;
    await guest.take(FRAME.RESET, stream);
    expect(guest.pending.some(({ type }) => type === FRAME.EOF)).toBe(false);
  });

  it('is ended by its signal, and by a guest that takes no more', async () => {
    const clock = createFakeClock();
    const { agent, guest } = await connectScriptedAgent({ clock });
    await using _agent = agent;
    const controller = new AbortController();
    const first = agent.writeFile(TARGET, bodyOf(Buffer.alloc(LIMITS.STREAM_WINDOW + 1)), controller.signal);
    const canceled = expect(first).rejects.toMatchObject({ code: 'canceled' });
    const one = await guest.request('writeFile');
    controller.abort();
    await canceled;
    await guest.take(FRAME.RESET, one.stream);
    const second = agent.writeFile(TARGET, bodyOf(Buffer.alloc(LIMITS.STREAM_WINDOW + 1)));
    const late = expect(second).rejects.toMatchObject({ code: 'deadline_exceeded' });
    const two = await guest.request('writeFile');
    await clock.advance(120_000);
    await late;
    await guest.take(FRAME.RESET, two.stream);
    expect(clock.pendingTimers).toBe(0);
  });

  it('an answer before the end of the body breaks the protocol', async () => {
    const { agent, guest } = await connectScriptedAgent();
    const writing = agent.writeFile(TARGET, bodyOf(Buffer.alloc(LIMITS.STREAM_WINDOW + 1)));
    const outcome = expect(writing).rejects.toMatchObject({ code: 'sandbox_unavailable' });
    guest.respond((await guest.request('writeFile')).stream, 'writeFile', { size: 1n });
    await outcome;
    expect((await agent.closed).kind).toBe('protocol');
  });
});

describe('source and sink', () => {
  it('count what moved', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    let bytes = 0;
    const sourcing = agent.source(10n, 5, (data) => {
      bytes += data.length;
    });
    const source = await guest.request('source');
    guest.respond(source.stream, 'source', {});
    await guest.take(FRAME.CREDIT, source.stream);
    guest.send(source.stream, FRAME.DATA, Buffer.alloc(5));
    guest.send(source.stream, FRAME.DATA, Buffer.alloc(5));
    guest.send(source.stream, FRAME.EOF);
    await sourcing;
    expect(bytes).toBe(10);
    const sinking = agent.sink(bodyOf(Buffer.alloc(5)));
    const sink = await guest.request('sink');
    await guest.take(FRAME.EOF, sink.stream);
    guest.respond(sink.stream, 'sink', { bytes: 5n });
    expect(await sinking).toBe(5n);
  });
});
