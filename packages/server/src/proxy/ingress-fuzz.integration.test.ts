import type { IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type IngressFixture, SANDBOX_DOMAIN, SANDBOX_ID, startIngress } from '../testing/ingress-fixture.ts';

/** Reported with every failure, and enough to run it again. */
const SEED = 20_261;
const PORT = 3000;

let ingress: IngressFixture;
/** Requests the service got to see. */
const seen: IncomingMessage[] = [];
let answerHeaders: readonly string[] = [];
beforeAll(async () => {
  ingress = await startIngress();
  await ingress.serve(PORT, (request, response) => {
    seen.push(request);
    response.sendDate = false;
    // With a text behind it Node would write the head in UTF-8.
    response.writeHead(200, ['content-length', '2', ...answerHeaders]).end(Buffer.from('ok'));
  });
});
afterAll(async () => {
  expect(ingress.faults()).toEqual([]);
  await ingress[Symbol.asyncDispose]();
});

/** Sends bytes and returns everything that comes back; the server ends the connection. */
async function raw(bytes: string): Promise<string> {
  const socket = await ingress.connect();
  socket.write(bytes, 'latin1');
  const answer = await text(socket.setEncoding('latin1'));
  socket.destroy();
  return answer;
}

/** What may stand in a request line. */
const pathCharacter = fc.integer({ min: 0x21, max: 0x7e }).map((code) => String.fromCharCode(code));
const path = fc
  .array(
    fc.oneof(
      { weight: 6, arbitrary: pathCharacter },
      { weight: 2, arbitrary: fc.constantFrom('%2F', '%2e', '%25', '%00', '..', '//', '/./', '?', '%') },
    ),
    { maxLength: 80 },
  )
  // The fragment is never sent, and parsers refuse it.
  .map((parts) => `/${parts.join('').replaceAll('#', '')}`);

const token = fc.stringMatching(/^[a-z][a-z0-9-]{0,20}$/);
const fieldValue = fc
  .array(
    fc.oneof(
      fc.integer({ min: 0x20, max: 0x7e }).map((code) => String.fromCharCode(code)),
      fc.integer({ min: 0xa0, max: 0xff }).map((code) => String.fromCharCode(code)),
    ),
    { maxLength: 40 },
  )
  .map((characters) => characters.join('').trim());
/** Fields that mean nothing to anybody on the way. */
const fields = fc.array(
  fc.tuple(
    token.map((name) => `q-${name}`),
    fieldValue,
  ),
  { maxLength: 20 },
);

describe(`anything a client may send (seed ${SEED})`, () => {
  it('keeps every path and every header as it is, there and back', async () => {
    await fc.assert(
      fc.asyncProperty(path, fields, fields, async (target, there, back) => {
        seen.length = 0;
        answerHeaders = back.flat();
        const head = there.map(([name, value]) => `${name}: ${value}\r\n`).join('');
        const answer = await raw(
          `GET ${target} HTTP/1.1\r\nhost: ${ingress.host(PORT)}\r\n${head}connection: close\r\n\r\n`,
        );
        expect(answer).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
        const [request] = seen;
        expect(request?.url).toBe(target);
        expect(pairs(request?.rawHeaders ?? []).filter(([name]) => name.startsWith('q-'))).toEqual(there);
        const [answerHead = ''] = answer.split('\r\n\r\n');
        const returned = answerHead
          .split('\r\n')
          .map((line) => /^(q-[^:]+): ?(.*)$/.exec(line))
          .flatMap((match) => (match === null ? [] : [[match[1], match[2]]]));
        expect(returned).toEqual(back);
      }),
      { seed: SEED, numRuns: 150 },
    );
  }, 60_000);

  it('answers every host clearly, and reaches a sandbox only by its own', async () => {
    const label = fc.oneof(
      fc.string({ unit: 'grapheme-ascii', maxLength: 30 }).map((name) => name.replaceAll(/[\r\n\0\s]/g, '')),
      fc
        .tuple(fc.integer({ min: -5, max: 70_000 }), fc.constantFrom('-', '--', '.', ''))
        .map(([port, dash]) => `${port}${dash}${SANDBOX_ID}`),
      fc.constantFrom(
        `${PORT}-${SANDBOX_ID}`,
        `0${PORT}-${SANDBOX_ID}`,
        `${PORT}-${SANDBOX_ID.toUpperCase()}`,
        `+${PORT}-${SANDBOX_ID}`,
      ),
    );
    const suffix = fc.constantFrom(
      `.${SANDBOX_DOMAIN}`,
      `.${SANDBOX_DOMAIN}.`,
      `.x${SANDBOX_DOMAIN}`,
      `.${SANDBOX_DOMAIN}:80`,
      '',
      '.test',
    );
    await fc.assert(
      fc.asyncProperty(label, suffix, async (name, domain) => {
        const host = `${name}${domain}`;
        seen.length = 0;
        const answer = await raw(`GET / HTTP/1.1\r\nhost: ${host}\r\nconnection: close\r\n\r\n`);
        expect(answer).toMatch(/^HTTP\/1\.1 (?:200|400|502) /);
        const own = /^0?3000-iaaaaaaaaaaaaaaaaaaaa\.sandboxes\.test\.?(?::80)?$/i;
        expect(seen.length === 1).toBe(own.test(host));
      }),
      { seed: SEED, numRuns: 150 },
    );
  }, 120_000);

  it('survives heads that are none', async () => {
    const line = fc.oneof(
      fc.string({ unit: 'binary-ascii', maxLength: 60 }),
      fc.constantFrom(
        `host: ${PORT}-${SANDBOX_ID}.${SANDBOX_DOMAIN}`,
        'content-length: 5',
        'content-length: 6',
        'content-length: -1',
        'transfer-encoding: chunked',
        'transfer-encoding: chunked, chunked',
        'transfer-encoding: identity',
        'connection: upgrade, close',
        'upgrade: websocket',
        'expect: 100-continue',
        'te: trailers',
        'trailer: x',
        ': no name',
        ' folded',
        `e2b-sandbox-id: ${SANDBOX_ID}`,
        'e2b-sandbox-port: 3000',
      ),
    );
    const request = fc.tuple(
      fc.constantFrom(
        'GET / HTTP/1.1',
        'POST / HTTP/1.1',
        'GET / HTTP/1.0',
        'PRI * HTTP/2.0',
        'FOO / HTTP/1.1',
        'GET  /',
        '',
      ),
      fc.array(line, { maxLength: 8 }),
      fc.constantFrom('', 'hello', '5\r\nhello\r\n0\r\n\r\n', 'ffffffffff\r\n', '0\r\nx: y\r\n\r\n'),
    );
    await fc.assert(
      fc.asyncProperty(request, async ([first, lines, body]) => {
        const socket = await ingress.connect();
        const answered = text(socket.setEncoding('latin1'));
        // The end of the request, so that nobody waits for more of it.
        socket.end(`${[first, ...lines].join('\r\n')}\r\n\r\n${body}`, 'latin1');
        const answer = await answered.catch((error: NodeJS.ErrnoException) => error.code ?? 'failed');
        expect(answer === '' || answer === 'ECONNRESET' || /^HTTP\/1\.1 [1-5]\d\d /.test(answer)).toBe(true);
      }),
      { seed: SEED, numRuns: 200 },
    );
    // And the next one is served.
    const after = await raw(`GET / HTTP/1.1\r\nhost: ${ingress.host(PORT)}\r\nconnection: close\r\n\r\n`);
    expect(after).toMatch(/^HTTP\/1\.1 200 /);
  }, 120_000);
});

function pairs(raw: readonly string[]): [string, string][] {
  return Array.from({ length: raw.length / 2 }, (_, index) => [raw[2 * index] ?? '', raw[2 * index + 1] ?? '']);
}
