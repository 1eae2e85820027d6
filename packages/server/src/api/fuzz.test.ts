import { once } from 'node:events';
import { type AddressInfo, connect } from 'node:net';
import fc from 'fast-check';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestApp, TEST_API_KEY, type TestApp } from '../testing/app.ts';
import { loadControlPlane } from './document.ts';

const SEED = 20_260_101;
const head = (line: string, ...headers: string[]) => [line, 'host: x', ...headers, '', ''].join('\r\n');
/** Those that come to an end. */
const operations = loadControlPlane().filter(({ endless }) => !endless);
/** Milliseconds; the machines that run this are shared. */
const TIMEOUT = 60_000;

let front: TestApp;
let port: number;
beforeAll(async () => {
  front = await createTestApp({ domains: ['sandboxes.test'] });
  await front.app.listen({ host: '127.0.0.1', port: 0 });
  port = (front.app.server.address() as AddressInfo).port;
});
beforeEach(() => front.orchestrator.clear());
afterAll(() => front[Symbol.asyncDispose]());

const FIELDS = [
  'templateID',
  'timeout',
  'autoPause',
  'autoPauseMemory',
  'autoResume',
  'secure',
  'allow_internet_access',
  'network',
  'metadata',
  'envVars',
  'mcp',
  'iam',
  'volumeMounts',
  'duration',
  'memory',
  'allowOut',
  'denyOut',
  '__proto__',
  'constructor',
  'toString',
  '',
] as const;

const value: fc.Arbitrary<unknown> = fc.oneof(
  fc.jsonValue({ maxDepth: 4 }),
  fc.constantFrom('base', '', '\u0000', 'x'.repeat(70_000), -1, 0, 1, 1e308, 2 ** 53, '1.1.1.1', '::/0', '*.a.test'),
  fc.dictionary(fc.constantFrom(...FIELDS), fc.jsonValue({ maxDepth: 2 })),
);
const body = fc.oneof(
  { weight: 5, arbitrary: fc.dictionary(fc.constantFrom(...FIELDS), value).map((object) => JSON.stringify(object)) },
  { weight: 1, arbitrary: fc.json() },
  { weight: 1, arbitrary: fc.string({ unit: 'binary' }) },
  { weight: 1, arbitrary: fc.constantFrom('[[[[[[[['.repeat(5_000), '{"a":'.repeat(5_000), '', 'null', '1e999') },
);
const segment = fc.oneof(
  fc.constantFrom(
    'some-id',
    'metrics',
    'test-host',
    '%2F',
    '%00',
    '%zz',
    '..',
    '.',
    '%2e%2e',
    'x'.repeat(3_000),
    '💥',
    '%F0%9F',
  ),
  fc.string().map(encodeURIComponent),
);
const query = fc.array(
  fc.tuple(
    fc.constantFrom(
      'metadata',
      'state',
      'startedAfter',
      'template',
      'order',
      'limit',
      'nextToken',
      'teamID',
      'clusterID',
      'sandbox_ids',
      'start',
      'end',
      'cursor',
      'direction',
      'level',
      'search',
      '__proto__',
    ),
    fc.oneof(
      fc.string().map(encodeURIComponent),
      fc.constantFrom('%', '%25', '%2525', '1', '-1', '1e9', 'running', 'asc', '%00', '+', '2026-01-01T00:00:00Z'),
      fc.constantFrom('253402300800', '9'.repeat(400), 'forward', 'debug', 'some-id,some-id', ','.repeat(5_000), 'NaN'),
    ),
  ),
  { maxLength: 6 },
);

describe('hostile requests', () => {
  it(
    'get a clear 4xx whose code is the status, never a failure of ours',
    async () => {
      const request = fc.record({
        operation: fc.constantFrom(...operations),
        segments: fc.array(segment, { minLength: 2, maxLength: 2 }),
        query,
        body,
        contentType: fc.constantFrom('application/json', 'text/plain', 'application/json; charset="', '', 'a/b;c'),
        key: fc.constantFrom(TEST_API_KEY, TEST_API_KEY, TEST_API_KEY, '', 'wrong'),
      });
      await fc.assert(
        fc.asyncProperty(request, async ({ operation, segments, query, body, contentType, key }) => {
          let next = 0;
          const path = operation.path.replaceAll(/\{\w+\}/g, () => segments[next++ % segments.length] ?? 'x');
          const response = await front.app.inject({
            method: operation.method,
            url: `${path}?${query.map(([name, text]) => `${name}=${text}`).join('&')}`,
            headers: { 'x-api-key': key, 'content-type': contentType },
            ...(operation.method === 'GET' ? {} : { payload: body }),
          });
          const { statusCode } = response;
          expect(statusCode < 500 || (statusCode === 501 && !operation.built), `${statusCode} ${response.body}`).toBe(
            true,
          );
          if (statusCode >= 400) {
            expect(response.json()).toMatchObject({ code: statusCode, message: expect.any(String) });
            expect(response.body.length).toBeLessThan(1_500);
          }
        }),
        { seed: SEED, numRuns: 1_000 },
      );
    },
    TIMEOUT,
  );
});

/** Bodies clients send, for those below to be made of. */
const SEEDS: readonly (readonly [path: string, body: unknown])[] = [
  ['/v2/sandboxes', { templateID: 'base' }],
  [
    '/v2/sandboxes',
    {
      templateID: 'base',
      metadata: { 'k 1': 'v&=1' },
      envVars: { A: 'b' },
      timeout: 10,
      network: { allowOut: ['1.1.1.1'], denyOut: ['0.0.0.0/0'], allowPublicTraffic: true },
      autoPause: false,
      autoResume: { enabled: false },
      volumeMounts: [],
    },
  ],
  ['/sandboxes', { templateID: 'base', timeout: 300, secure: true, allow_internet_access: true }],
  ['/sandboxes/some-id/connect', { timeout: 2, memory: false }],
  ['/sandboxes/some-id/timeout', { timeout: 0 }],
  ['/sandboxes/some-id/refreshes', { duration: 60 }],
];

interface Change {
  readonly at: number;
  readonly to: number;
  readonly how: 'replace' | 'insert' | 'cut' | 'double';
}

function spoil(bytes: Buffer, { at, to, how }: Change): Buffer {
  const index = at % (bytes.length + 1);
  const [before, after] = [bytes.subarray(0, index), bytes.subarray(index)];
  switch (how) {
    case 'replace':
      return Buffer.concat([before, Buffer.of(to), after.subarray(1)]);
    case 'insert':
      return Buffer.concat([before, Buffer.of(to), after]);
    case 'cut':
      return before;
    case 'double':
      return Buffer.concat([before, before, after]);
  }
}

const changes: fc.Arbitrary<readonly Change[]> = fc.array(
  fc.record({
    at: fc.nat(),
    to: fc.nat({ max: 255 }),
    how: fc.constantFrom('replace', 'insert', 'cut', 'double'),
  }),
  { maxLength: 6 },
);

describe('bodies that were sane once', () => {
  it(
    'are done or refused; what is done is what the body says',
    async () => {
      await fc.assert(
        fc.asyncProperty(fc.constantFrom(...SEEDS), changes, async ([path, seed], spoils) => {
          front.orchestrator.clear();
          const body = spoils.reduce(spoil, Buffer.from(JSON.stringify(seed)));
          const response = await front.app.inject({
            method: 'POST',
            url: path,
            headers: { 'x-api-key': TEST_API_KEY, 'content-type': 'application/json' },
            payload: body,
          });
          const { statusCode } = response;
          expect(statusCode < 500, `${statusCode} ${response.body}`).toBe(true);
          if (statusCode >= 400) expect(response.json()).toMatchObject({ code: statusCode });
          const [call] = front.orchestrator.calls;
          if (call?.method !== 'create') return;
          const asked = JSON.parse(body.toString()) as Record<string, unknown>;
          expect(call.arguments[0]).toMatchObject({
            template: asked.templateID,
            metadata: asked.metadata ?? {},
            envVars: asked.envVars ?? {},
          });
        }),
        { seed: SEED, numRuns: 1_000 },
      );
    },
    TIMEOUT,
  );

  it(
    'may come in pieces of any size; compressed ones are refused by name',
    async () => {
      const text = JSON.stringify(SEEDS[1]?.[1]);
      const pieces = fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1, maxLength: 30 });
      await fc.assert(
        fc.asyncProperty(pieces, fc.boolean(), async (sizes, compressed) => {
          let body = '';
          for (let at = 0, turn = 0; at < text.length; turn++) {
            const part = text.slice(at, at + (sizes[turn % sizes.length] ?? 1));
            body += `${part.length.toString(16)}\r\n${part}\r\n`;
            at += part.length;
          }
          const lines = [
            `x-api-key: ${TEST_API_KEY}`,
            'connection: close',
            'content-type: application/json',
            'transfer-encoding: chunked',
          ];
          if (compressed) lines.push('content-encoding: gzip');
          const received = await exchange(`${head('POST /v2/sandboxes HTTP/1.1', ...lines)}${body}0\r\n\r\n`);
          expect(received).toMatch(compressed ? /^HTTP\/1.1 400 / : /^HTTP\/1.1 201 /);
          if (compressed) expect(received).toContain('content-encoding');
        }),
        { seed: SEED, numRuns: 50 },
      );
    },
    TIMEOUT,
  );
});

/** What the server writes in answer to raw bytes, until it closes the connection. */
async function exchange(bytes: string | Uint8Array): Promise<string> {
  const socket = connect(port, '127.0.0.1');
  let received = '';
  socket.setEncoding('latin1').on('data', (text: string) => {
    received += text;
  });
  // A reset is an end as good as any other for bytes that are no request.
  socket.on('error', () => {});
  await once(socket, 'connect');
  socket.end(bytes);
  if (!socket.closed) await once(socket, 'close');
  return received;
}

describe('hostile bytes', () => {
  it.each([
    ['no request at all', '\u0000\u0001\u0002', 400],
    ['an unknown method', head('BREW /coffee HTTP/1.1'), 400],
    ['a second content length', head('POST /sandboxes HTTP/1.1', 'content-length: 1', 'content-length: 2'), 400],
    ['length and chunks', head('POST /sandboxes HTTP/1.1', 'content-length: 3', 'transfer-encoding: chunked'), 400],
    [
      'a broken chunk',
      `${head('POST /v2/sandboxes HTTP/1.1', `x-api-key: ${TEST_API_KEY}`, 'transfer-encoding: chunked')}zz\r\n`,
      400,
    ],
    ['no host', 'GET /health HTTP/1.1\r\n\r\n', 400],
    ['a head that is too large', head('GET /health HTTP/1.1', `x-large: ${'x'.repeat(40_000)}`), 431],
    [
      'two keys',
      head(
        'GET /v2/sandboxes HTTP/1.1',
        `x-api-key: ${TEST_API_KEY}`,
        `x-api-key: ${TEST_API_KEY}`,
        'connection: close',
      ),
      401,
    ],
  ])('answers %s', async (_what, bytes, status) => {
    expect(await exchange(bytes)).toMatch(new RegExp(`^HTTP/1.1 ${status} `));
  });

  it(
    'survives random bytes in and around requests',
    async () => {
      const start = fc.constantFrom(
        '',
        'GET ',
        'GET /health HTTP/1.1\r\n',
        head('POST /v2/sandboxes HTTP/1.1', 'transfer-encoding: chunked'),
      );
      await fc.assert(
        fc.asyncProperty(start, fc.uint8Array({ maxLength: 300 }), async (before, bytes) => {
          const received = await exchange(Buffer.concat([Buffer.from(before), bytes]));
          expect(received).toMatch(/^(?:HTTP\/1\.1 (?:2\d\d|4\d\d) |$)/);
        }),
        { seed: SEED, numRuns: 300 },
      );
      expect(await exchange(head('GET /health HTTP/1.1', 'connection: close'))).toMatch(/^HTTP\/1.1 204 /);
    },
    TIMEOUT,
  );
});
