import { isUtf8 } from 'node:buffer';
import { PlatformError } from '@agentenv/core';

/** Header lines of one part together, bytes. */
const MAX_HEADER_BYTES = 16 * 1024;
/** What may stand before the first boundary, bytes. */
const MAX_PREAMBLE_BYTES = 16 * 1024;
const MAX_PARTS = 10_000;
/** How much of a piece is joined to what is left of the one before, bytes. */
const BRIDGE_BYTES = 1024;
const CRLF = Buffer.from('\r\n');
/** RFC 2046 section 5.1.1. */
const MAX_BOUNDARY_LENGTH = 70;

export interface Part {
  readonly name: string | undefined;
  /** As sent, directories included; undefined when the part has none. */
  readonly filename: string | undefined;
  /** To be read to its end before the next part is asked for; what is left unread is skipped. */
  readonly body: AsyncIterable<Uint8Array>;
}

/** The boundary of a `multipart/*` content type; throws `invalid_argument` when it has none that is usable. */
export function boundaryOf(contentType: string): string {
  const boundary = parseParameters(contentType).get('boundary');
  if (boundary === undefined || boundary === '' || boundary.length > MAX_BOUNDARY_LENGTH) {
    throw malformed('the content type has no usable boundary');
  }
  return boundary;
}

/**
 * The parts of a multipart body in order, pulled from `source` only as fast as they are read, in constant memory.
 * Unlike the parsers built for forms it gives a part without a filename as a stream, keeps directories in filenames,
 * and refuses a body that is cut off or malformed instead of dropping the part.
 */
export async function* readMultipart(
  source: AsyncIterable<Uint8Array>,
  boundary: string,
): AsyncGenerator<Part, void, undefined> {
  const input = createInput(source);
  const delimiter = Buffer.from(`\r\n--${boundary}`, 'latin1');
  try {
    await skipPreamble(input, delimiter);
    for (let count = 1; await hasPart(input); count++) {
      if (count > MAX_PARTS) throw malformed(`more than ${MAX_PARTS} parts`);
      const headers = parseHeaders(await readHeaderBlock(input));
      const disposition = parseParameters(headers.get('content-disposition') ?? '');
      const next = createPartReader(input, delimiter);
      // No `return` on the iterator: a reader that leaves early must not end the part for the skipping below.
      const body: AsyncIterable<Uint8Array> = { [Symbol.asyncIterator]: () => ({ next }) };
      yield { name: disposition.get('name'), filename: unescapeFilename(disposition.get('filename')), body };
      while ((await next()).done !== true);
    }
  } finally {
    await input.close();
  }
}

async function skipPreamble(input: Input, delimiter: Buffer): Promise<void> {
  // The first delimiter may stand at the very start, without the line break that belongs to every other one.
  const bare = delimiter.subarray(CRLF.length);
  if ((await input.peek(bare.length)).equals(bare)) input.take(bare.length);
  else await input.until(delimiter, MAX_PREAMBLE_BYTES, 'the first boundary');
}

/** Reads what follows a delimiter: `--` ends the body, a line break begins a part. */
async function hasPart(input: Input): Promise<boolean> {
  if ((await input.peek(2)).equals(Buffer.from('--'))) return false;
  const padding = await input.until(CRLF, MAX_HEADER_BYTES, 'the end of a boundary line');
  if (!/^[ \t]*$/.test(padding.toString('latin1'))) throw malformed('a boundary line has more than the boundary');
  return true;
}

/** The header lines of a part, up to the empty line, which a part without any begins with. */
async function readHeaderBlock(input: Input): Promise<Buffer> {
  if ((await input.peek(CRLF.length)).equals(CRLF)) {
    input.take(CRLF.length);
    return Buffer.alloc(0);
  }
  return await input.until(Buffer.from('\r\n\r\n'), MAX_HEADER_BYTES, 'part headers');
}

function createPartReader(input: Input, delimiter: Buffer): () => Promise<IteratorResult<Uint8Array, undefined>> {
  let ended = false;
  return async () => {
    while (!ended) {
      const found = input.indexOf(delimiter);
      const bytes = found >= 0 ? found : input.length - input.beginningAtEnd(delimiter);
      const value = input.take(bytes);
      if (found >= 0) {
        input.take(delimiter.length);
        ended = true;
      } else if (bytes === 0) {
        await input.more('the end of a part');
      }
      if (bytes > 0) return { done: false, value };
    }
    return { done: true, value: undefined };
  };
}

/** Header lines to lower-case names; folded lines belong to the one before. */
function parseHeaders(block: Buffer): ReadonlyMap<string, string> {
  const headers = new Map<string, string>();
  if (!isUtf8(block)) throw malformed('the headers of a part are not valid UTF-8');
  const unfolded = block.toString('utf8').replaceAll(/\r\n[ \t]+/g, ' ');
  for (const line of unfolded.split('\r\n')) {
    if (line === '') continue;
    const colon = line.indexOf(':');
    if (colon <= 0) throw malformed('a part has a header line without a name');
    headers.set(line.slice(0, colon).trim().toLowerCase(), line.slice(colon + 1).trim());
  }
  return headers;
}

/** `; name=value` pairs of a header, values quoted or not; a backslash counts only before a quote. */
function parseParameters(header: string): ReadonlyMap<string, string> {
  const parameters = new Map<string, string>();
  for (const [, name = '', quoted, plain] of header.matchAll(
    /;\s*([^\s=;"]+)\s*=\s*(?:"((?:\\"|[^"])*)"|([^\s;]*))/g,
  )) {
    parameters.set(name.toLowerCase(), quoted === undefined ? (plain ?? '') : quoted.replaceAll('\\"', '"'));
  }
  return parameters;
}

/** Undoes what browsers and HTTP clients do to the three characters a quoted filename cannot hold. */
function unescapeFilename(filename: string | undefined): string | undefined {
  return filename?.replaceAll('%22', '"').replaceAll(/%0d/gi, '\r').replaceAll(/%0a/gi, '\n');
}

/** The body as it is read: what was not taken of the piece that is there. */
interface Input {
  readonly length: number;
  indexOf(needle: Buffer): number;
  /** How many bytes at the end are the beginning of `needle`. */
  beginningAtEnd(needle: Buffer): number;
  take(bytes: number): Buffer;
  /** Waits for more bytes; throws when the body ends. */
  more(wanted: string): Promise<void>;
  peek(bytes: number): Promise<Buffer>;
  /** What stands before `needle`, which is consumed too. */
  until(needle: Buffer, max: number, wanted: string): Promise<Buffer>;
  close(): Promise<void>;
}

function createInput(source: AsyncIterable<Uint8Array>): Input {
  const iterator = source[Symbol.asyncIterator]();
  let buffer: Buffer = Buffer.alloc(0);
  /** Rest of the last piece, behind `buffer`. */
  let rest: Buffer | undefined;

  async function nextPiece(wanted: string): Promise<Buffer> {
    if (rest !== undefined) return rest;
    const next = await iterator.next();
    if (next.done === true) throw malformed(`the body ends before ${wanted}`);
    const { value } = next;
    return Buffer.from(value.buffer, value.byteOffset, value.byteLength);
  }

  const input: Input = {
    get length() {
      return buffer.length;
    },
    indexOf: (needle) => buffer.indexOf(needle),
    beginningAtEnd(needle) {
      for (let bytes = Math.min(buffer.length, needle.length - 1); bytes > 0; bytes--) {
        if (buffer.subarray(-bytes).equals(needle.subarray(0, bytes))) return bytes;
      }
      return 0;
    },
    take(bytes) {
      const taken = buffer.subarray(0, bytes);
      buffer = buffer.subarray(bytes);
      return taken;
    },
    async more(wanted) {
      const piece = await nextPiece(wanted);
      if (buffer.length === 0) {
        buffer = piece;
        rest = undefined;
        return;
      }
      // Only as much is copied as shows a mark whole that is split between two pieces: a body of large files must not
      // be copied as it passes.
      buffer = Buffer.concat([buffer, piece.subarray(0, BRIDGE_BYTES)]);
      rest = piece.length > BRIDGE_BYTES ? piece.subarray(BRIDGE_BYTES) : undefined;
    },
    async peek(bytes) {
      while (buffer.length < bytes) await input.more('its last boundary');
      return buffer.subarray(0, bytes);
    },
    async until(needle, max, wanted) {
      for (;;) {
        const found = buffer.indexOf(needle);
        if (found > max || (found < 0 && buffer.length > max + needle.length)) {
          throw malformed(`${wanted}: more than ${max} bytes`);
        }
        if (found >= 0) {
          const before = input.take(found);
          input.take(needle.length);
          return before;
        }
        await input.more(wanted);
      }
    },
    async close() {
      await iterator.return?.();
    },
  };
  return input;
}

function malformed(detail: string): PlatformError {
  return new PlatformError('invalid_argument', `multipart body: ${detail}`);
}
