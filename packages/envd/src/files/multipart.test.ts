import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { boundaryOf, readMultipart } from './multipart.ts';
import { randomChunks } from './testing/random-chunks.ts';

interface ReadPart {
  readonly name: string | undefined;
  readonly filename: string | undefined;
  readonly text: string;
}

async function readAll(source: AsyncIterable<Uint8Array>, boundary: string): Promise<ReadPart[]> {
  const parts: ReadPart[] = [];
  for await (const part of readMultipart(source, boundary)) {
    const chunks: Uint8Array[] = [];
    for await (const chunk of part.body) chunks.push(chunk);
    parts.push({ name: part.name, filename: part.filename, text: Buffer.concat(chunks).toString('latin1') });
  }
  return parts;
}

function parse(body: string, boundary = 'B'): Promise<ReadPart[]> {
  return readAll(randomChunks(Buffer.from(body, 'latin1'), [7, 1, 3]), boundary);
}

/** The same runs every time; another seed by hand finds other things. */
const SEED = 20_260_402;
const malformed = expect.objectContaining({ code: 'invalid_argument' });

describe('multipart body', () => {
  test('a part without a filename is content like any other', async () => {
    const parts = await parse('--B\r\nContent-Disposition: form-data; name="file"\r\n\r\nhello\r\n--B--\r\n');
    expect(parts).toEqual([{ name: 'file', filename: undefined, text: 'hello' }]);
  });

  test('filenames keep their directories, and quotes come back as they were', async () => {
    const body = '--B\r\ncontent-disposition: form-data; name=file; filename="a/b/%22c%22.txt"\r\n\r\n\r\n--B--';
    expect(await parse(body)).toEqual([{ name: 'file', filename: 'a/b/"c".txt', text: '' }]);
  });

  test('a filename may hold semicolons and backslashes and be UTF-8', async () => {
    const name = Buffer.from('x;y\\"ü.txt', 'utf8').toString('latin1');
    const body = `--B\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\n\r\n1\r\n--B--`;
    expect((await parse(body))[0]?.filename).toBe('x;y"ü.txt');
  });

  test('a filename that is no UTF-8 is refused, not changed', async () => {
    const body = '--B\r\nContent-Disposition: form-data; name="file"; filename="a\xff"\r\n\r\n1\r\n--B--';
    await expect(parse(body)).rejects.toEqual(malformed);
  });

  test('what looks like a boundary inside a part is content', async () => {
    const content = '\r\n-B--B\r\n--\r\n--b\r\r\n--A--B';
    const body = `--B\r\nContent-Disposition: form-data; name="file"\r\n\r\n${content}\r\n--B--`;
    expect((await parse(body))[0]?.text).toBe(content);
  });

  test('preamble, epilogue, padding behind a boundary, folded headers and a part without headers are understood', async () => {
    const body =
      'preamble\r\n--B \t\r\nContent-Disposition: form-data;\r\n name="a"\r\n\r\n1\r\n--B\r\n\r\n2\r\n--B--\r\nepilogue';
    expect(await parse(body)).toEqual([
      { name: 'a', filename: undefined, text: '1' },
      { name: undefined, filename: undefined, text: '2' },
    ]);
  });

  test('a part that is not read is skipped, also when its reader left in the middle', async () => {
    const part = (name: string, text: string) =>
      `--B\r\nContent-Disposition: form-data; name="${name}"\r\n\r\n${text}\r\n`;
    const body = Buffer.from(
      `${part('skipped', 'x'.repeat(500))}${part('left', 'y'.repeat(500))}${part('file', 'z')}--B--`,
    );
    const seen: string[] = [];
    for await (const { name, body: content } of readMultipart(randomChunks(body, [11]), 'B')) {
      seen.push(name ?? '');
      if (name === 'skipped') continue;
      for await (const _chunk of content) break;
    }
    expect(seen).toEqual(['skipped', 'left', 'file']);
  });

  test('no part at all is an empty list', async () => {
    expect(await parse('--B--')).toEqual([]);
  });

  test.each([
    ['an empty body', ''],
    ['no boundary', 'hello'],
    ['a cut-off part', '--B\r\nContent-Disposition: form-data; name="file"\r\n\r\nhel'],
    ['a cut-off header', '--B\r\nContent-Disp'],
    ['a cut-off boundary', '--B\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--'],
    ['a header line without a name', '--B\r\nnonsense\r\n\r\nx\r\n--B--'],
    ['a boundary line with more behind it', '--Bx\r\n\r\n\r\n--B--'],
    ['endless headers', `--B\r\n${'X: y\r\n'.repeat(5000)}`],
    ['an endless preamble', 'x'.repeat(100_000)],
  ])('refuses %s', async (_what, body) => {
    await expect(parse(body)).rejects.toThrow(malformed);
  });

  test('refuses more parts than anybody means', async () => {
    await expect(readAll(randomChunks(Buffer.from('--B\r\n\r\n\r\n'.repeat(10_001)), [4096]), 'B')).rejects.toThrow(
      malformed,
    );
  });

  test('an error of the source is passed on and the source is closed when the reader leaves', async () => {
    let closed = false;
    async function* source() {
      try {
        yield Buffer.from('--B\r\n\r\nx');
        yield Buffer.from('y');
        throw new Error('broken');
      } finally {
        closed = true;
      }
    }
    await expect(readAll(source(), 'B')).rejects.toThrow('broken');
    closed = false;
    for await (const _part of readMultipart(source(), 'B')) break;
    expect(closed).toBe(true);
  });

  test("agrees with the platform's own writer for any content cut anywhere", async () => {
    const text = fc.string({ unit: fc.constantFrom('\r', '\n', '-', 'a', '"', '%', 'ü', '\0'), maxLength: 60 });
    await fc.assert(
      fc.asyncProperty(
        fc.array(text, { maxLength: 5 }),
        fc.array(fc.nat(40), { minLength: 1, maxLength: 6 }),
        async (contents, cuts) => {
          const form = new FormData();
          for (const [index, content] of contents.entries()) form.append('file', new Blob([content]), `d/${index}"x`);
          const encoded = new Response(form);
          const boundary = boundaryOf(encoded.headers.get('content-type') ?? '');
          const body = Buffer.from(await encoded.arrayBuffer());
          const parts = await readAll(
            randomChunks(
              body,
              cuts.map((cut) => cut + 1),
            ),
            boundary,
          );
          expect(parts).toEqual(
            contents.map((content, index) => ({
              name: 'file',
              filename: `d/${index}"x`,
              text: Buffer.from(content, 'utf8').toString('latin1'),
            })),
          );
        },
      ),
      { numRuns: 200, seed: SEED },
    );
  });

  test('arbitrary bytes never crash it: parts or a refusal', async () => {
    const piece = fc.constantFrom(
      '--B',
      '\r\n',
      '--',
      'Content-Disposition: form-data; name="file"',
      ':',
      'x',
      '\r\n\r\n',
      ' ',
    );
    await fc.assert(
      fc.asyncProperty(fc.array(piece, { maxLength: 25 }), async (pieces) => {
        await parse(pieces.join('')).catch((caught: unknown) => expect(caught).toEqual(malformed));
      }),
      { numRuns: 500, seed: SEED },
    );
  });
});

describe('boundary of a content type', () => {
  test.each([
    ['multipart/form-data; boundary=abc', 'abc'],
    ['multipart/form-data; charset=utf-8; Boundary="a b"', 'a b'],
  ])('%s', (contentType, expected) => {
    expect(boundaryOf(contentType)).toBe(expected);
  });

  test.each(['multipart/form-data', 'multipart/form-data; boundary=', `multipart/mixed; boundary=${'x'.repeat(71)}`])(
    'refuses %s',
    (contentType) => {
      expect(() => boundaryOf(contentType)).toThrow(malformed);
    },
  );
});
