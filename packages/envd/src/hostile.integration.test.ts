import { once } from 'node:events';
import { createConnection } from 'node:net';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { decodeFrames, encodeFrame } from './testing/connect-frames.ts';
import { inBoundedMemory, type Target, targetAt } from './testing/hostile-target.ts';
import { TOKEN } from './testing/http-client.ts';
import { type MeasuredEnvd, startMeasuredEnvd } from './testing/measured-envd.ts';

const MIB = 1024 * 1024;
/** The same runs every time; another seed by hand finds other things. */
const SEED = 20_260_101;
const STREAM = { 'content-type': 'application/connect+json' };

let envd: MeasuredEnvd;
let target: Target;

beforeAll(async () => {
  envd = await startMeasuredEnvd();
  target = targetAt(envd.port);
});
afterAll(async () => {
  await envd[Symbol.asyncDispose]();
});

/** Sends bytes as they are and reads until the server closes. */
async function raw(bytes: Uint8Array | string): Promise<string> {
  return await new Promise((resolve) => {
    const socket = createConnection(target.port, '127.0.0.1');
    let received = '';
    socket.on('data', (chunk: Buffer) => {
      received += chunk.toString('latin1');
    });
    socket.on('error', () => undefined);
    socket.on('close', () => resolve(received));
    socket.write(bytes);
  });
}

async function errorOf(body: Uint8Array): Promise<string> {
  const answer = await target.send('/process.Process/Start', { method: 'POST', headers: STREAM, body });
  expect(answer.status).toBe(200);
  const { flags, json } = decodeFrames(answer.body).at(-1) ?? expect.fail('no end frame');
  expect(flags).toBe(2);
  return (json.error as { code: string }).code;
}

function frame(flags: number, length: number, data: Uint8Array = new Uint8Array()): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(length, 1);
  return Buffer.concat([head, data]);
}

describe('envelopes', () => {
  test.each([
    ['nothing', Buffer.alloc(0), /unimplemented|invalid_argument/],
    ['half a head', Buffer.from([0, 0]), 'invalid_argument'],
    ['a length without its bytes', frame(0, 100, Buffer.from('{}')), 'invalid_argument'],
    ['a length of 4 GiB', frame(0, 0xffff_ffff), 'resource_exhausted'],
    ['no JSON', frame(0, 3, Buffer.from('{{{')), 'invalid_argument'],
    ['the wrong JSON', encodeFrame({ process: 'x' }), 'invalid_argument'],
    [
      'a number beyond its type',
      encodeFrame({ process: { cmd: 'x' }, pty: { size: { cols: -1 } } }),
      'invalid_argument',
    ],
    ['bytes that are no UTF-8', frame(0, 2, Buffer.from([0xff, 0xfe])), 'invalid_argument'],
    ['two messages', Buffer.concat([encodeFrame({}), encodeFrame({})]), /unimplemented|invalid_argument/],
    ['a compressed message nobody announced', frame(1, 2, Buffer.from('{}')), 'invalid_argument'],
  ])('%s: an error in the end frame', async (_what, body, code) => {
    expect(await errorOf(body)).toMatch(code);
  });

  test('a message that unpacks to more than the limit is refused in bounded memory', async () => {
    const bomb = gzipSync(Buffer.alloc(200 * MIB, ' '));
    await inBoundedMemory(async ({ send }) => {
      const answer = await send('/process.Process/Start', {
        method: 'POST',
        headers: { ...STREAM, 'connect-content-encoding': 'gzip' },
        body: frame(1, bomb.length, bomb),
      });
      expect(decodeFrames(answer.body).at(-1)).toMatchObject({ json: { error: { code: 'resource_exhausted' } } });
    });
  });

  test('a unary body beyond the limit is refused and not kept', async () => {
    await inBoundedMemory(async ({ send }) => {
      async function* endless() {
        const chunk = Buffer.alloc(MIB, ' ');
        for (let count = 0; count < 64; count++) yield chunk;
      }
      const answer = await send('/process.Process/SendInput', {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: endless(),
      }).catch(() => undefined);
      // The connection may break while the rest is still being sent; an answer, if it came through, says why.
      if (answer !== undefined)
        expect(JSON.parse(answer.body.toString())).toMatchObject({ code: 'resource_exhausted' });
    });
  });

  test('deeply nested JSON is an error', async () => {
    const deep = `${'{"process":'.repeat(50_000)}1${'}'.repeat(50_000)}`;
    expect(await errorOf(frame(0, deep.length, Buffer.from(deep)))).toBe('invalid_argument');
  });

  test('arbitrary frames are answered with an error, never a crash', async () => {
    const message = fc.oneof(
      fc.json(),
      fc.constantFrom('{"process":{"cmd":"/bin/true"}}', '{"process":{"pid":1}}', '', '{}', 'null', '[]'),
    );
    const piece = fc.record({
      flags: fc.constantFrom(0, 0, 0, 1, 2, 3, 0x80),
      data: message,
      lie: fc.constantFrom(0, 0, 0, -1, 1, 70_000),
    });
    const method = fc.constantFrom('Start', 'Connect', 'StreamInput', 'List', 'SendInput', 'Update');
    const contentType = fc.constantFrom(
      'application/connect+json',
      'application/connect+proto',
      'application/json',
      'application/proto',
    );
    await inBoundedMemory(async ({ send }) => {
      await fc.assert(
        fc.asyncProperty(fc.array(piece, { maxLength: 3 }), method, contentType, async (pieces, name, type) => {
          const body = Buffer.concat(
            pieces.map(({ flags, data, lie }) => {
              const bytes = Buffer.from(data);
              return frame(flags, Math.max(0, bytes.length + lie), bytes);
            }),
          );
          const answer = await send(`/process.Process/${name}`, {
            method: 'POST',
            headers: { 'content-type': type },
            body,
          });
          expect([200, 400, 404, 415, 429, 500, 501]).toContain(answer.status);
          if (answer.status === 500) expect(answer.body.toString()).not.toContain('internal error');
        }),
        { numRuns: 300, seed: SEED },
      );
    });
  });
});

describe('files', () => {
  test('a form without end is refused when it breaks off, in bounded memory', async () => {
    await inBoundedMemory(async ({ send }) => {
      async function* endless() {
        yield Buffer.from('--B\r\nContent-Disposition: form-data; name="other"\r\n\r\n');
        // One piece over and over: the client shares this process, and its garbage is not what is measured.
        const chunk = Buffer.alloc(MIB, '\r\n--');
        for (let count = 0; count < 200; count++) yield chunk;
      }
      const answer = await send('/files', {
        method: 'POST',
        headers: { 'content-type': 'multipart/form-data; boundary=B' },
        body: endless(),
      });
      expect(answer.status).toBe(400);
    });
  });

  test('a gzip body that unpacks to a full disk costs the server nothing', async () => {
    const bomb = gzipSync(Buffer.alloc(300 * MIB));
    await inBoundedMemory(async ({ send }) => {
      const answer = await send('/files?path=/tmp/bomb', {
        method: 'POST',
        headers: { 'content-type': 'application/octet-stream', 'content-encoding': 'gzip' },
        body: bomb,
      });
      expect([200, 507]).toContain(answer.status);
    });
  });

  test('arbitrary queries and headers get an answer below 500', async () => {
    const header = fc.string({
      unit: fc.constantFrom('a', '"', ';', ',', '=', '*', '-', '0', '/', ' '),
      maxLength: 30,
    });
    await inBoundedMemory(async ({ send }) => {
      await fc.assert(
        fc.asyncProperty(
          fc.dictionary(
            fc.constantFrom('path', 'username', 'signature', 'signature_expiration'),
            fc.string({ maxLength: 40 }),
          ),
          fc.dictionary(
            fc.constantFrom(
              'range',
              'accept-encoding',
              'if-none-match',
              'if-range',
              'if-modified-since',
              'x-metadata-k',
            ),
            header,
          ),
          fc.constantFrom('GET', 'HEAD'),
          async (query, headers, method) => {
            const answer = await send(`/files?${new URLSearchParams(query)}`, { method, headers });
            expect(answer.status).toBeLessThan(500);
          },
        ),
        { numRuns: 300, seed: SEED },
      );
    });
  });

  test('arbitrary bodies of both kinds get an answer below 500 and leave no temporary files', async () => {
    const piece = fc.constantFrom(
      '--B',
      '\r\n',
      '--',
      'Content-Disposition: form-data; name="file"; filename="/tmp/fuzz/a"',
      '\r\n\r\n',
      '\x1f\x8b\x08',
      'x',
      '\0',
    );
    await inBoundedMemory(async ({ rpc, send }) => {
      await fc.assert(
        fc.asyncProperty(
          fc.array(piece, { maxLength: 12 }),
          fc.constantFrom('multipart/form-data; boundary=B', 'multipart/mixed', 'application/octet-stream'),
          fc.constantFrom('identity', 'gzip'),
          async (pieces, contentType, encoding) => {
            const answer = await send('/files?path=/tmp/fuzz/b', {
              method: 'POST',
              headers: { 'content-type': contentType, 'content-encoding': encoding },
              body: Buffer.from(pieces.join(''), 'latin1'),
            });
            expect(answer.status).toBeLessThan(500);
          },
        ),
        { numRuns: 300, seed: SEED },
      );
      const { json } = await rpc.unary('filesystem.Filesystem/ListDir', { path: '/tmp/fuzz' });
      const names = ((json.entries ?? []) as { name: string }[]).map(({ name }) => name);
      expect(names.filter((name) => name !== 'a' && name !== 'b')).toEqual([]);
    });
  });
});

describe('connections', () => {
  test('more headers than anybody needs are a 431', async () => {
    const flood = Array.from({ length: 5000 }, (_, index) => `X-Metadata-${index}: ${'v'.repeat(20)}`).join('\r\n');
    expect(await raw(`GET /health HTTP/1.1\r\nHost: x\r\n${flood}\r\n\r\n`)).toMatch(/^HTTP\/1\.1 431 /);
    await target.stillWorks();
  });

  test('bytes that are no HTTP are a 400', async () => {
    expect(await raw('\0\x01\x02 nonsense\r\n\r\n')).toMatch(/^HTTP\/1\.1 400 /);
  });

  test('a hundred clients that start a body and stall cost little and hold up nobody', async () => {
    await inBoundedMemory(async ({ port, stillWorks }) => {
      const sockets = Array.from({ length: 100 }, (_, index) => {
        const socket = createConnection(port, '127.0.0.1');
        socket.on('error', () => undefined);
        const path = index % 2 === 0 ? '/process.Process/Start' : '/files?path=/tmp/stalled';
        const type = index % 2 === 0 ? 'application/connect+json' : 'application/octet-stream';
        socket.write(
          `POST ${path} HTTP/1.1\r\nHost: x\r\nX-Access-Token: ${TOKEN}\r\nContent-Type: ${type}\r\nContent-Length: 1000000\r\n\r\n\0`,
        );
        return socket;
      });
      await Promise.all(sockets.map((socket) => (socket.connecting ? once(socket, 'connect') : undefined)));
      await stillWorks();
      for (const socket of sockets) socket.destroy();
    });
  });

  test('a connection is used again after an upload that was refused early', async () => {
    const body = 'x'.repeat(200_000);
    const refused = `POST /files?path=/tmp/x HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nX-Access-Token: ${TOKEN}\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    const next = 'GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n';
    const received = await raw(refused + next);
    expect(received).toMatch(/^HTTP\/1\.1 400 [\s\S]*HTTP\/1\.1 204 /);
  });

  test('a body without end behind a refusal is cut off', async () => {
    const received = await new Promise<string>((resolve) => {
      const socket = createConnection(target.port, '127.0.0.1');
      let text = '';
      let sent = 0;
      const chunk = Buffer.alloc(64 * 1024);
      const pump = (): void => {
        while (!socket.destroyed && socket.write(chunk)) sent += chunk.length;
      };
      socket.on('drain', pump);
      socket.on('data', (data: Buffer) => {
        text += data.toString('latin1');
      });
      socket.on('error', () => undefined);
      socket.on('close', () => resolve(`${sent < 64 * MIB ? 'cut' : 'endless'} ${text}`));
      socket.write(
        'POST /files?path=/tmp/x HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 100000000000\r\n\r\n',
      );
      pump();
    });
    // Before its connection is closed the client sees why.
    expect(received).toMatch(/^cut HTTP\/1\.1 401 /);
    await target.stillWorks();
  });
});
