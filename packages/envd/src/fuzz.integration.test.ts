import { Filesystem } from '@agentenv/protocol/filesystem';
import { Process } from '@agentenv/protocol/process';
import { type DescMethod, fromJson, type JsonValue, toBinary, toJsonString } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { inBoundedMemory } from './testing/hostile-target.ts';

/** The same runs every time; another seed by hand finds other things. A failure prints what reproduces it. */
const SEED = 20_260_401;

/** Well-formed messages to start from. What removes, moves or makes files is not here: the guest has this machine's. */
const MESSAGES: readonly (readonly [method: DescMethod, message: JsonValue])[] = [
  [Process.method.list, {}],
  [Process.method.start, { process: { cmd: '/bin/true', envs: { A: 'b' } }, stdin: false, tag: 't' }],
  [Process.method.start, { process: { cmd: '/bin/true' }, pty: { size: { cols: 80, rows: 24 } } }],
  [Process.method.connect, { process: { tag: 't' } }],
  [Process.method.update, { process: { pid: 1 }, pty: { size: { cols: 1, rows: 2 } } }],
  [Process.method.sendInput, { process: { pid: 1 }, input: { stdin: 'YWJj' } }],
  [Process.method.streamInput, { start: { process: { pid: 1 } } }],
  [Process.method.streamInput, { data: { input: { pty: 'YWJj' } } }],
  [Process.method.sendSignal, { process: { pid: 4_000_000 }, signal: 'SIGNAL_SIGTERM' }],
  [Process.method.closeStdin, { process: { tag: 'nobody' } }],
  [Filesystem.method.stat, { path: 'fz' }],
  [Filesystem.method.listDir, { path: 'fz', depth: 2 }],
  [Filesystem.method.watchDir, { path: 'fz', recursive: true, includeEntry: true }],
  [Filesystem.method.createWatcher, { path: 'fz' }],
  [Filesystem.method.getWatcherEvents, { watcherId: 'w0' }],
  [Filesystem.method.removeWatcher, { watcherId: 'w0' }],
];

/** Damage to bytes, by positions relative to their length. */
const damage = fc.record({
  kind: fc.constantFrom('none', 'none', 'flip', 'replace', 'cut', 'insert', 'repeat', 'truncate'),
  at: fc.double({ min: 0, max: 1, noNaN: true, maxExcluded: true }),
  bytes: fc.uint8Array({ minLength: 1, maxLength: 8 }),
});

function damaged(bytes: Buffer, { kind, at, bytes: given }: { kind: string; at: number; bytes: Uint8Array }): Buffer {
  const position = Math.floor(at * bytes.length);
  const before = bytes.subarray(0, position);
  const behind = bytes.subarray(position);
  switch (kind) {
    case 'flip': {
      const copy = Buffer.from(bytes);
      if (copy.length > 0) copy[position] = (copy[position] ?? 0) ^ (1 << ((given[0] ?? 0) & 7));
      return copy;
    }
    case 'replace':
      return Buffer.concat([before, given, behind.subarray(given.length)]);
    case 'cut':
      return Buffer.concat([before, behind.subarray(given.length)]);
    case 'insert':
      return Buffer.concat([before, given, behind]);
    case 'repeat':
      return Buffer.concat([bytes, behind]);
    case 'truncate':
      return Buffer.from(before);
    default:
      return bytes;
  }
}

function envelope(flags: number, lie: number, data: Buffer): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(Math.max(0, data.length + lie), 1);
  return Buffer.concat([head, data]);
}

describe('Connect envelopes', () => {
  test.each(['json', 'proto'])(
    '%s: damaged messages of every call get an answer, and nothing is kept',
    async (codec) => {
      const attempt = fc.record({
        message: fc.constantFrom(...MESSAGES),
        count: fc.constantFrom(1, 1, 1, 0, 2),
        inside: damage,
        outside: damage,
        flags: fc.constantFrom(0, 0, 0, 0, 1, 2, 3, 0x80),
        lie: fc.constantFrom(0, 0, 0, 0, -1, 1, 70_000, 0x7fff_ffff),
        compression: fc.constantFrom(undefined, undefined, 'gzip', 'br', 'identity', 'nonsense'),
      });
      await inBoundedMemory(async ({ send, rpc }) => {
        expect(await rpc.unary('filesystem.Filesystem/MakeDir', { path: 'fz' })).toMatchObject({ status: 200 });
        await fc.assert(
          fc.asyncProperty(
            attempt,
            async ({ message: [method, json], count, inside, outside, flags, lie, compression }) => {
              const message = fromJson(method.input, json);
              const whole =
                codec === 'json' ? Buffer.from(toJsonString(method.input, message)) : toBinary(method.input, message);
              const bytes = damaged(Buffer.from(whole), inside);
              const stream = method.methodKind !== 'unary';
              const body = stream
                ? Buffer.concat(Array.from({ length: count }, () => envelope(flags, lie, bytes)))
                : Buffer.concat(Array.from({ length: count }, () => bytes));
              const answer = await send(`/${method.parent.typeName}/${method.name}`, {
                method: 'POST',
                headers: {
                  'content-type': `application/${stream ? 'connect+' : ''}${codec}`,
                  // A stream that is in order after all must end.
                  'connect-timeout-ms': '50',
                  ...(compression === undefined
                    ? {}
                    : { [`${stream ? 'connect-' : ''}content-encoding`]: compression }),
                },
                body: damaged(body, outside),
              });
              expect([200, 400, 401, 404, 409, 429, 500, 501, 504]).toContain(answer.status);
              expect(answer.body.toString('latin1')).not.toContain('internal error');
            },
          ),
          { numRuns: 400, seed: SEED },
        );
      });
    },
  );

  test('calls that change the tree take any name below a directory', async () => {
    const name = fc
      .string({ unit: 'binary', minLength: 1, maxLength: 300 })
      .filter((text) => !/^\.{1,2}$|\//.test(text));
    const path = fc.array(name, { minLength: 1, maxLength: 4 }).map((names) => `/tmp/fuzz/${names.join('/')}`);
    await inBoundedMemory(async ({ rpc }) => {
      await fc.assert(
        fc.asyncProperty(path, path, fc.boolean(), async (one, other, remove) => {
          const made = await rpc.unary('filesystem.Filesystem/MakeDir', { path: one });
          expect([200, 400, 409]).toContain(made.status);
          const moved = await rpc.unary('filesystem.Filesystem/Move', { source: one, destination: other });
          expect([200, 400, 404, 500], JSON.stringify(moved)).toContain(moved.status);
          expect(moved.json.code).not.toBe('unknown');
          if (remove) {
            expect((await rpc.unary('filesystem.Filesystem/Remove', { path: other })).status).toBeLessThan(500);
          }
        }),
        { numRuns: 150, seed: SEED },
      );
      expect((await rpc.unary('filesystem.Filesystem/ListDir', { path: '/tmp/fuzz', depth: 9 })).status).toBe(200);
    });
  });
});

describe('targets of file requests', () => {
  test('arbitrary paths and queries, escaped well or badly, get an answer below 500', async () => {
    const unit = fc.constantFrom(
      ...['%', '%0', '%00', '%zz', '%2F', '%2e', '%C3%28', '%F0%9F%92%A9', '%u0041', '+', '&', '=', ';', '?', '/', '.'],
      ...['..', '~', '\\', 'a', 'path=', 'username=', 'signature=', 'signature_expiration=', 'v1_', '\xfc', '\x7f'],
    );
    const query = fc.string({ unit, maxLength: 30 });
    const target = fc.constantFrom(
      '/files?',
      '/files?path=',
      '/files',
      '/files/',
      '//files?',
      '/files/compose?',
      '/%66iles?',
    );
    await inBoundedMemory(async ({ send }) => {
      await fc.assert(
        fc.asyncProperty(
          target,
          query,
          fc.constantFrom('GET', 'HEAD'),
          fc.boolean(),
          async (start, rest, method, token) => {
            const answer = await send(start + rest, { method, headers: token ? {} : { 'x-access-token': [] } });
            expect(answer.status).toBeLessThan(500);
          },
        ),
        { numRuns: 500, seed: SEED },
      );
    });
  });
});
