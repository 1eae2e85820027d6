import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  FRAME,
  frame,
  freshNonce,
  OP,
  type RawConnection,
  request,
  STATUS,
  str,
  u16,
  u32,
  u64,
} from './support/raw-connection.ts';
import { type SanitizedGuest, startSanitizedGuest } from './support/sanitized-guest.ts';

/** Longer than any answer takes, shorter than a test may: what has not come by then does not come. */
const SILENCE_MS = 300;

/** Of a process, whose id the guest remembers for a while: no other test uses it. */
const REMEMBERED = 80_000;

let guest: SanitizedGuest;
beforeAll(async () => {
  guest = await startSanitizedGuest();
});
afterAll(async () => {
  await guest.stop();
});

async function connected(key?: Uint8Array): Promise<RawConnection> {
  const connection = await guest.connectRaw();
  try {
    await connection.resync(key);
  } catch (caught) {
    connection[Symbol.dispose]();
    throw caught;
  }
  return connection;
}

/** The status of the response on a stream. */
async function statusOn(connection: RawConnection, stream: number): Promise<number> {
  const { payload } = await connection.frame((got) => got.stream === stream && got.type === FRAME.response);
  return payload.readUInt32LE(0);
}

async function ping(connection: RawConnection, stream: number): Promise<void> {
  connection.send(request(stream, OP.ping));
  expect(await statusOn(connection, stream)).toBe(STATUS.ok);
}

function activateBody(key: Uint8Array): Buffer {
  return Buffer.concat([key, str('generation-1'), Buffer.from([0]), u64(0n), str(randomBytes(32)), str(''), u32(0)]);
}

describe('resync', () => {
  test('is answered before anything else is understood', async () => {
    using connection = await guest.connectRaw();
    connection.send(request(16, OP.ping));
    expect(await connection.silentFor(SILENCE_MS)).toBe(true);
    await connection.resync();
    await ping(connection, 20);
  });

  test('of two records honours the last', async () => {
    using connection = await connected();
    const last = freshNonce();
    connection.send(new Uint8Array(16), freshNonce(), new Uint8Array(16), last);
    await connection.answerTo(last);
    await ping(connection, 16);
  });

  test('is found when its record arrives byte by byte', async () => {
    using connection = await connected();
    const nonce = freshNonce();
    for (const byte of Buffer.concat([new Uint8Array(16), nonce])) connection.send(Buffer.from([byte]));
    await connection.answerTo(nonce);
    await ping(connection, 16);
  });

  test('ends a half frame, with the zero key and with one of an activate', async () => {
    using connection = await connected();
    connection.send(request(16, OP.sink), frame(16, FRAME.data, randomBytes(5000)).subarray(0, 700));
    await connection.resync();
    await ping(connection, 20);

    const key = randomBytes(16);
    connection.send(request(24, OP.activate, activateBody(key)));
    expect(await statusOn(connection, 24)).toBe(STATUS.ok);
    for (const half of [1, 8, 9, 10, 600]) {
      connection.send(request(28, OP.sink), frame(28, FRAME.data, Buffer.alloc(5000)).subarray(0, half));
      await connection.resync(key);
      await ping(connection, 32);
    }

    connection.send(Buffer.concat([new Uint8Array(16), freshNonce()]));
    expect(await connection.silentFor(SILENCE_MS)).toBe(true);
    await connection.resync(key);

    // The key in an activate that names it again is no record, wherever the frame is split.
    const again = request(36, OP.activate, activateBody(key));
    connection.send(again.subarray(0, 40));
    connection.send(again.subarray(40));
    expect(await statusOn(connection, 36)).toBe(STATUS.ok);
    await ping(connection, 40);

    connection.send(request(44, OP.activate, activateBody(new Uint8Array(16))));
    expect(await statusOn(connection, 44)).toBe(STATUS.ok);
  });

  test('works fifty times after hosts that vanish in the middle of a frame while output floods', async () => {
    for (let round = 0; round < 50; round++) {
      using connection = await connected();
      connection.send(
        frame(0, FRAME.credit, u32(1 << 20)),
        request(16, OP.source, Buffer.concat([u64(1n << 30n), u32(32_768)])),
      );
      connection.send(frame(16, FRAME.credit, u32(1 << 20)));
      await connection.frame((got) => got.stream === 16 && got.type === FRAME.data);
      connection.send(request(20, OP.sink), frame(20, FRAME.data, randomBytes(30_000)).subarray(0, 1 + round * 500));
    }
    using connection = await connected();
    await ping(connection, 16);
  });

  test('lets a second client wait until the first is gone', async () => {
    using first = await connected();
    using second = await guest.connectRaw();
    const nonce = freshNonce();
    second.send(new Uint8Array(16), nonce);
    expect(await second.silentFor(SILENCE_MS)).toBe(true);
    await ping(first, 16);
    first[Symbol.dispose]();
    await second.answerTo(nonce);
    await ping(second, 16);
  });
});

describe('protocol errors', () => {
  test.each([
    ['an unknown frame type', frame(16, 9)],
    ['a frame only the guest may send', frame(16, FRAME.response, u32(0))],
    ['DATA that is too long', frame(16, FRAME.data, Buffer.alloc(65_537))],
    ['a control frame that is too long', Buffer.concat([u32(1_048_577), u32(16), Buffer.from([FRAME.request])])],
    ['DATA on the channel itself', frame(0, FRAME.data, Buffer.from('x'))],
    ['EOF with a payload', frame(16, FRAME.eof, Buffer.from('x'))],
    ['CREDIT without its number', frame(16, FRAME.credit)],
    ['a request shorter than its head', frame(16, FRAME.request, Buffer.alloc(5))],
    ['a request on an id of a stdin', request(17, OP.ping)],
    ['a request on an id of the guest', request(0x8000_0000, OP.ping)],
    ['a request on an id in use', Buffer.concat([request(16, OP.sink), request(16, OP.ping)])],
    [
      'DATA on a stream that takes none',
      Buffer.concat([
        request(16, OP.source, Buffer.concat([u64(1n), u32(1)])),
        frame(18, FRAME.eof),
        frame(16, FRAME.request, Buffer.alloc(6)),
      ]),
    ],
  ])('%s: silence until the next resync', async (_what, bytes) => {
    using connection = await connected();
    connection.send(bytes, request(64, OP.ping));
    await expect(connection.frame((got) => got.stream === 64, SILENCE_MS)).rejects.toThrow();
    await connection.resync();
    await ping(connection, 20);
  });

  test('more than the window of a stdin nobody reads: silence until the next resync', async () => {
    using connection = await connected();
    const argv = Buffer.concat([u32(2), str('sleep'), str('1000')]);
    const rest = Buffer.concat([u32(0), str('/'), str('/'), u32(2), u16(0), u16(0), str(''), str(''), u64(0n)]);
    connection.send(request(REMEMBERED, OP.spawn, Buffer.concat([str('root'), argv, rest])));
    expect(await statusOn(connection, REMEMBERED)).toBe(STATUS.ok);
    const flood = Array.from({ length: 8 }, () => frame(REMEMBERED + 1, FRAME.data, Buffer.alloc(65_536, 'x')));
    connection.send(...flood, request(64, OP.ping));
    await expect(connection.frame((got) => got.stream === 64, SILENCE_MS)).rejects.toThrow();
    await connection.resync();
    connection.send(request(20, OP.signal, Buffer.concat([u32(REMEMBERED), u32(9)])));
    expect(await statusOn(connection, 20)).toBe(STATUS.ok);
    await connection.frame((got) => got.stream === REMEMBERED && got.type === FRAME.event);
  });

  test('a body that does not match its layout is answered, and the channel goes on', async () => {
    using connection = await connected();
    const bodies = [
      Buffer.alloc(1),
      u32(5),
      Buffer.concat([u32(3), Buffer.from('/\0x')]),
      Buffer.concat([str('/'), u16(0)]),
    ];
    for (const [index, body] of bodies.entries()) {
      connection.send(request(16 + 4 * index, OP.stat, body));
      expect(await statusOn(connection, 16 + 4 * index)).toBe(STATUS.protocol);
    }
    connection.send(request(64, 999));
    expect(await statusOn(connection, 64)).toBe(STATUS.unsupported);
    await ping(connection, 68);
  });

  test('frames for streams that have ended are ignored', async () => {
    using connection = await connected();
    connection.send(
      frame(400, FRAME.data, Buffer.from('late')),
      frame(400, FRAME.eof),
      frame(401, FRAME.credit, u32(9)),
      frame(402, FRAME.reset, u32(14)),
    );
    await ping(connection, 16);
  });
});

describe('credit', () => {
  const source = (stream: number, bytes: bigint): Buffer =>
    request(stream, OP.source, Buffer.concat([u64(bytes), u32(32_768)]));

  test('shorter than a frame makes a smaller frame, of the stream and of the channel', async () => {
    using connection = await connected();
    connection.send(source(16, 1_000_000n), frame(16, FRAME.credit, u32(10)));
    await expect(connection.frame((got) => got.type === FRAME.data, SILENCE_MS)).rejects.toThrow();
    connection.send(frame(0, FRAME.credit, u32(7)));
    expect((await connection.frame((got) => got.type === FRAME.data)).payload).toHaveLength(7);
    connection.send(frame(0, FRAME.credit, u32(1000)));
    expect((await connection.frame((got) => got.type === FRAME.data)).payload).toHaveLength(3);
    connection.send(frame(16, FRAME.credit, u32(100_000)));
    const sizes: number[] = [];
    for (let total = 0; total < 997; total += sizes.at(-1) ?? 0) {
      sizes.push((await connection.frame((got) => got.type === FRAME.data)).payload.length);
    }
    expect(sizes.reduce((sum, size) => sum + size, 0)).toBe(997);
    await expect(connection.frame((got) => got.type === FRAME.data, SILENCE_MS)).rejects.toThrow();
  });

  test('a stream without credit delays no other', async () => {
    using connection = await connected();
    connection.send(frame(0, FRAME.credit, u32(1 << 20)), source(16, 1n << 30n), source(20, 300_000n));
    connection.send(frame(16, FRAME.credit, u32(32_768)), frame(20, FRAME.credit, u32(300_001)));
    let received = 0;
    while (received < 300_000) {
      received += (await connection.frame((got) => got.stream === 20 && got.type === FRAME.data)).payload.length;
    }
    await connection.frame((got) => got.stream === 20 && got.type === FRAME.eof);
    await ping(connection, 28);
  });

  test('streams take turns, and a control frame overtakes what is queued', async () => {
    using connection = await connected();
    connection.send(
      source(16, 1n << 30n),
      source(20, 1n << 30n),
      frame(16, FRAME.credit, u32(1 << 20)),
      frame(20, FRAME.credit, u32(1 << 20)),
    );
    connection.send(frame(0, FRAME.credit, u32(1 << 20)), request(24, OP.ping));
    const order: number[] = [];
    for (;;) {
      const got = await connection.frame(({ type }) => type === FRAME.data || type === FRAME.response);
      if (got.stream === 24) break;
      if (got.type === FRAME.data) order.push(got.stream);
    }
    expect(order.length).toBeLessThanOrEqual(4);
    for (let index = 0; index < 12; index++)
      order.push((await connection.frame(({ type }) => type === FRAME.data)).stream);
    const pairs = order.slice(1).filter((stream, index) => stream === order[index]);
    expect(pairs.length).toBeLessThanOrEqual(2);
  });

  test('a host that reads nothing is waited for in bounded memory', async () => {
    using connection = await connected();
    for (let stream = 16; stream < 16 + 4 * 3000; stream += 4) connection.send(request(stream, OP.list));
    await ping(connection, 40_000);
  });
});
