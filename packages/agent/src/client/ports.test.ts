import type { Duplex } from 'node:stream';
import { describe, expect, it } from 'vitest';
import type { Agent } from '../agent.ts';
import { FRAME, LIMITS, STATUS } from '../generated/protocol.ts';
import { connectScriptedAgent, frameBytes, type ScriptedGuest, u32Bytes } from '../testing/scripted-guest.ts';

async function connected(
  agent: Agent,
  guest: ScriptedGuest,
): Promise<{ readonly duplex: Duplex; readonly stream: number }> {
  const connecting = agent.connectPort(8080);
  const { stream, body } = await guest.request('connectPort');
  expect(body).toEqual({ port: 8080, slotAddress: '' });
  guest.respond(stream, 'connectPort', { address: '127.0.0.1' });
  const duplex = await connecting;
  await guest.take(FRAME.CREDIT, stream);
  return { duplex, stream };
}

const once = (duplex: Duplex, event: string): Promise<unknown> => new Promise((resolve) => duplex.once(event, resolve));

describe('connectPort', () => {
  it('carries bytes both ways and closes each direction by itself', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { duplex, stream } = await connected(agent, guest);
    const closed = once(duplex, 'close');
    guest.send(stream, FRAME.DATA, Buffer.from('from guest'));
    guest.send(stream, FRAME.EOF);
    const received: Buffer[] = [];
    for await (const chunk of duplex.iterator({ destroyOnReturn: false })) received.push(chunk);
    expect(Buffer.concat(received).toString()).toBe('from guest');
    expect(duplex.writable).toBe(true);
    duplex.end('from host');
    expect((await guest.take(FRAME.DATA, stream)).payload.toString()).toBe('from host');
    await guest.take(FRAME.EOF, stream);
    await closed;
    expect(guest.pending.filter(({ type }) => type === FRAME.RESET)).toEqual([]);
  });

  it('goes on reading after the host has finished writing', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { duplex, stream } = await connected(agent, guest);
    duplex.end();
    await guest.take(FRAME.EOF, stream);
    guest.send(stream, FRAME.DATA, Buffer.from('late'));
    guest.send(stream, FRAME.EOF);
    const received: Buffer[] = [];
    for await (const chunk of duplex) received.push(chunk);
    expect(Buffer.concat(received).toString()).toBe('late');
  });

  it('holds at most a window when nobody reads', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { duplex, stream } = await connected(agent, guest);
    for (let index = 0; index < 4; index++) guest.send(stream, FRAME.DATA, Buffer.alloc(LIMITS.MAX_DATA));
    const ping = agent.ping();
    guest.respond((await guest.request('ping')).stream, 'ping', { monotonicNs: 1n });
    await ping;
    expect(guest.pending.filter((frame) => frame.stream === stream)).toEqual([]);
    let total = 0;
    duplex.on('data', (chunk: Buffer) => {
      total += chunk.length;
    });
    await guest.take(FRAME.CREDIT, stream);
    guest.send(stream, FRAME.EOF);
    await once(duplex, 'end');
    expect(total).toBe(4 * LIMITS.MAX_DATA);
    duplex.destroy();
  });

  it('makes the writer wait for credit', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { duplex, stream } = await connected(agent, guest);
    expect(duplex.write(Buffer.alloc(LIMITS.STREAM_WINDOW + 1))).toBe(false);
    let drained = false;
    const drain = once(duplex, 'drain').then(() => {
      drained = true;
    });
    for (let got = 0; got < LIMITS.STREAM_WINDOW; ) got += (await guest.take(FRAME.DATA, stream)).payload.length;
    expect(drained).toBe(false);
    guest.credit(stream, 1);
    await drain;
    duplex.destroy();
    await guest.take(FRAME.RESET, stream);
  });

  it('a RESET of the guest becomes an error of the stream, which nobody has to listen to', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const { duplex, stream } = await connected(agent, guest);
    const closed = once(duplex, 'close');
    guest.send(stream, FRAME.RESET, u32Bytes(STATUS.IO));
    await closed;
    expect(duplex.errored).toMatchObject({ code: 'internal' });
    const other = await connected(agent, guest);
    const lost = once(other.duplex, 'error');
    guest.end();
    expect(await lost).toMatchObject({ code: 'sandbox_unavailable' });
  });

  it('rejects instead of handing on a connection that was reset right behind its response', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const connecting = agent.connectPort(8080);
    const { stream } = await guest.request('connectPort');
    guest.raw(
      Buffer.concat([
        frameBytes(stream, FRAME.RESPONSE, Buffer.concat([u32Bytes(STATUS.OK), u32Bytes(0)])),
        frameBytes(stream, FRAME.RESET, u32Bytes(STATUS.IO)),
      ]),
    );
    await expect(connecting).rejects.toMatchObject({ code: 'internal', details: { status: 'IO' } });
  });

  it('a refused port is told apart', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const connecting = agent.connectPort(1);
    guest.fail((await guest.request('connectPort')).stream, 'REFUSED', '', 111);
    await expect(connecting).rejects.toMatchObject({ code: 'unavailable', details: { status: 'REFUSED', errno: 111 } });
  });
});

describe('listenPort', () => {
  const ACCEPTED = 0x8000_0000;

  async function listening(agent: Agent, guest: ScriptedGuest, onConnection: (connection: Duplex) => void) {
    const starting = agent.listenPort(49_983, onConnection);
    const { stream } = await guest.request('listenPort');
    guest.respond(stream, 'listenPort', {});
    return { listener: await starting, stream };
  }

  it('hands on each connection with its window', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const connections: Duplex[] = [];
    const { stream } = await listening(agent, guest, (connection) => connections.push(connection));
    guest.event(stream, 'accepted', { stream: ACCEPTED, peerPort: 5 });
    expect((await guest.take(FRAME.CREDIT, ACCEPTED)).payload.readUInt32LE()).toBe(LIMITS.STREAM_WINDOW);
    guest.send(ACCEPTED, FRAME.DATA, Buffer.from('hi'));
    const [connection] = connections;
    const data = connection === undefined ? undefined : await once(connection, 'data');
    expect(String(data)).toBe('hi');
    connection?.write('ho');
    expect((await guest.take(FRAME.DATA, ACCEPTED)).payload.toString()).toBe('ho');
  });

  it('after it was disposed refuses connections that were on their way', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    let connections = 0;
    const { listener, stream } = await listening(agent, guest, () => connections++);
    await listener[Symbol.asyncDispose]();
    await listener[Symbol.asyncDispose]();
    await guest.take(FRAME.RESET, stream);
    guest.event(stream, 'accepted', { stream: ACCEPTED + 4, peerPort: 5 });
    await guest.take(FRAME.RESET, ACCEPTED + 4);
    expect(connections).toBe(0);
  });

  it('resets a connection whose handler fails, and refuses more than a bounded number', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const failing = await listening(agent, guest, () => {
      throw new Error('handler');
    });
    guest.event(failing.stream, 'accepted', { stream: ACCEPTED, peerPort: 5 });
    await guest.take(FRAME.RESET, ACCEPTED);
    const { stream } = await listening(agent, guest, () => {});
    for (let index = 1; index <= 1025; index++) {
      guest.event(stream, 'accepted', { stream: ACCEPTED + index * 4, peerPort: 5 });
    }
    expect((await guest.take(FRAME.RESET)).stream).toBe(ACCEPTED + 1025 * 4);
  });

  it.each([
    ['an id of the host', 16],
    ['an id twice', ACCEPTED],
  ])('a connection with %s breaks the protocol', async (_what, id) => {
    const { agent, guest } = await connectScriptedAgent();
    const { stream } = await listening(agent, guest, () => {});
    guest.event(stream, 'accepted', { stream: ACCEPTED, peerPort: 5 });
    guest.event(stream, 'accepted', { stream: id, peerPort: 5 });
    expect((await agent.closed).kind).toBe('protocol');
  });
});

describe('watch', () => {
  it('delivers events until it is disposed, whatever its handler does', async () => {
    const { agent, guest } = await connectScriptedAgent();
    await using _agent = agent;
    const seen: string[] = [];
    const starting = agent.watch('/dir', { recursive: true }, (event) => {
      seen.push(`${event.path}:${event.mask}:${event.isDirectory}`);
      throw new Error('handler');
    });
    const { stream, body } = await guest.request('watch');
    expect(body).toEqual({ path: '/dir', flags: 1 });
    guest.respond(stream, 'watch', {});
    const watch = await starting;
    guest.event(stream, 'watch', { path: 'a', mask: 256, cookie: 0, isDir: false });
    guest.event(stream, 'watch', { path: 'b', mask: 512, cookie: 0, isDir: true });
    const ping = agent.ping();
    guest.respond((await guest.request('ping')).stream, 'ping', { monotonicNs: 1n });
    await ping;
    expect(seen).toEqual(['a:256:false', 'b:512:true']);
    await watch[Symbol.asyncDispose]();
    await guest.take(FRAME.RESET, stream);
  });
});
