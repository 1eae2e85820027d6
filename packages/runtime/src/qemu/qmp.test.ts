import { mkdtemp, rm } from 'node:fs/promises';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createFakeClock } from '@agentenv/core/testing';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { nextQmpEvent, openQmp } from './qmp.ts';
import { parseQmpMessage, type QmpEvent } from './qmp-events.ts';

const GREETING =
  '{"QMP":{"version":{"qemu":{"micro":22,"minor":2,"major":7},"package":"Debian"},"capabilities":["oob"]}}\n';

describe('QMP messages', () => {
  test('events carry what the platform decides on', () => {
    const events: [string, QmpEvent][] = [
      ['{"event":"STOP"}', { name: 'STOP' }],
      [
        '{"event":"SHUTDOWN","data":{"guest":true,"reason":"guest-reset"}}',
        { name: 'SHUTDOWN', byGuest: true, reason: 'guest-reset' },
      ],
      ['{"event":"GUEST_PANICKED","data":{"action":"pause"}}', { name: 'GUEST_PANICKED', action: 'pause' }],
      [
        '{"event":"BLOCK_IO_ERROR","data":{"device":"","node-name":"upper","operation":"write","action":"report","nospace":true,"reason":"No space left on device"}}',
        {
          name: 'BLOCK_IO_ERROR',
          node: 'upper',
          operation: 'write',
          action: 'report',
          reason: 'No space left on device',
        },
      ],
      ['{"event":"MIGRATION","data":{"status":"completed"}}', { name: 'MIGRATION', status: 'completed' }],
      ['{"event":"NIC_RX_FILTER_CHANGED","data":{}}', { name: 'other', event: 'NIC_RX_FILTER_CHANGED' }],
    ];
    for (const [line, event] of events) expect(parseQmpMessage(line)).toEqual({ kind: 'event', event });
  });

  test('any JSON is either a message or a SyntaxError', () => {
    fc.assert(
      fc.property(fc.json(), (line) => {
        try {
          expect(parseQmpMessage(line)).toHaveProperty('kind');
        } catch (caught) {
          expect(caught).toBeInstanceOf(SyntaxError);
        }
      }),
    );
  });
});

describe('QMP client', () => {
  let directory: string;
  let server: Server;
  let accepted: Promise<Socket>;
  const sockets: Socket[] = [];

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'aenv-qmp-'));
    const first = Promise.withResolvers<Socket>();
    accepted = first.promise;
    server = createServer((socket) => {
      sockets.push(socket);
      socket.on('error', () => undefined);
      first.resolve(socket);
    });
    await new Promise<void>((resolve) => server.listen(join(directory, 's'), resolve));
  });
  afterEach(async () => {
    for (const socket of sockets.splice(0)) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
    await rm(directory, { recursive: true, force: true });
  });

  /** An engine that answers each command by `answer`; `undefined` stays silent. */
  function engine(socket: Socket, answer: (command: string, args: unknown) => object | undefined): void {
    let text = '';
    socket.on('data', (chunk: Buffer) => {
      text += chunk.toString();
      for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n')) {
        const { execute, arguments: args, id } = JSON.parse(text.slice(0, end));
        text = text.slice(end + 1);
        const reply = execute === 'qmp_capabilities' ? { return: {} } : answer(execute, args);
        if (reply !== undefined) socket.write(`${JSON.stringify({ ...reply, id })}\r\n`);
      }
    });
    socket.write(GREETING);
  }

  async function opened(answer: (command: string, args: unknown) => object | undefined) {
    const clock = createFakeClock();
    const opening = openQmp(connect(join(directory, 's')), clock);
    const socket = await accepted;
    engine(socket, answer);
    return { qmp: await opening, socket, clock };
  }

  test('negotiates, answers commands and reports the version', async () => {
    const { qmp } = await opened((command, args) => ({ return: { command, args } }));
    expect(qmp.version).toBe('7.2.22 (Debian)');
    await expect(qmp.execute('query-status', { a: 1 })).resolves.toEqual({ command: 'query-status', args: { a: 1 } });
    await qmp[Symbol.asyncDispose]();
    await qmp.closed;
  });

  test('a refusal is an error that names what the engine said, and the next command works', async () => {
    const { qmp } = await opened((command) =>
      command === 'cont'
        ? { error: { class: 'GenericError', desc: 'Resetting the Virtual Machine is required' } }
        : { return: 1 },
    );
    await expect(qmp.execute('cont')).rejects.toMatchObject({
      code: 'create_failed',
      message: 'the engine refused: Resetting the Virtual Machine is required',
    });
    await expect(qmp.execute('stop')).resolves.toBe(1);
  });

  test('a silent engine fails the command at its deadline and leaves no timer', async () => {
    const { qmp, clock } = await opened(() => undefined);
    const answer = qmp.execute('stop', {}, { deadlineMs: 500 });
    const outcome = expect(answer).rejects.toMatchObject({ code: 'deadline_exceeded' });
    await clock.advance(500);
    await outcome;
    expect(clock.pendingTimers).toBe(0);
  });

  test('the end of the engine fails what is pending and is seen by everybody', async () => {
    const { qmp, socket, clock } = await opened(() => undefined);
    const answer = expect(qmp.execute('stop')).rejects.toMatchObject({ code: 'sandbox_unavailable' });
    const event = expect(nextQmpEvent(qmp, clock, () => undefined, 1_000)).rejects.toMatchObject({
      code: 'sandbox_unavailable',
    });
    socket.destroy();
    await Promise.all([answer, event, qmp.closed]);
    await expect(qmp.execute('stop')).rejects.toMatchObject({ code: 'sandbox_unavailable' });
  });

  test('a message split over many packets arrives whole, between two events', async () => {
    const { qmp, socket, clock } = await opened(() => undefined);
    const seen: QmpEvent[] = [];
    qmp.subscribe((event) => seen.push(event));
    const status = nextQmpEvent(
      qmp,
      clock,
      (event) => (event.name === 'MIGRATION' && event.status === 'completed' ? event.status : undefined),
      1_000,
    );
    const text =
      '{"event":"STOP"}\r\n{"event":"MIGRATION","data":{"status":"active"}}\r\n{"event":"MIGRATION","data":{"status":"completed"}}\r\n';
    for (const character of text) socket.write(character);
    await expect(status).resolves.toBe('completed');
    expect(seen.map((event) => event.name)).toEqual(['STOP', 'MIGRATION', 'MIGRATION']);
  });

  test.each(['not json\n', '[]\n', '{"neither":1}\n', `{"QMP":"${'x'.repeat(1 << 20)}`])(
    'an engine that stops speaking QMP is dropped',
    async (noise) => {
      const { qmp, socket } = await opened(() => undefined);
      socket.write(noise);
      await qmp.closed;
      await expect(qmp.execute('stop')).rejects.toMatchObject({ code: 'sandbox_unavailable' });
    },
  );

  test('an engine held by somebody else fails at the deadline of the greeting', async () => {
    const clock = createFakeClock();
    const opening = openQmp(connect(join(directory, 's')), clock);
    await accepted;
    const outcome = expect(opening).rejects.toMatchObject({ code: 'deadline_exceeded' });
    await clock.advance(10_000);
    await outcome;
    expect(clock.pendingTimers).toBe(0);
  });

  test('an aborted wait ends with canceled', async () => {
    const { qmp, clock } = await opened(() => undefined);
    const abort = new AbortController();
    const answer = expect(qmp.execute('stop', {}, {}, abort.signal)).rejects.toMatchObject({ code: 'canceled' });
    const event = expect(nextQmpEvent(qmp, clock, () => undefined, 1_000, abort.signal)).rejects.toMatchObject({
      code: 'canceled',
    });
    abort.abort();
    await Promise.all([answer, event]);
    expect(clock.pendingTimers).toBe(0);
  });
});
