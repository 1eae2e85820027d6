import { request as httpRequest, type IncomingMessage, type OutgoingHttpHeaders } from 'node:http';
import { encodeFrame, type Frame } from './connect-frames.ts';
import { TOKEN } from './http-client.ts';

export interface UnaryAnswer {
  readonly status: number;
  readonly json: Record<string, unknown>;
}

/** A server stream, read frame by frame from the socket. */
export interface ServerStream extends AsyncDisposable {
  readonly status: number;
  readonly headers: IncomingMessage['headers'];
  /** The next frame; undefined at the end of the body. */
  next(): Promise<Frame | undefined>;
  /** Every frame that is left. */
  rest(): Promise<Frame[]>;
  /** Reads until a frame satisfies the condition, which it returns; throws at the end of the body. */
  until(condition: (frame: Frame) => boolean): Promise<Frame>;
  /** The client goes away. */
  close(): void;
}

/** Calls the service as a client on the wire does, nothing hidden. */
export interface RpcClient {
  unary(method: string, message: unknown, headers?: OutgoingHttpHeaders): Promise<UnaryAnswer>;
  stream(method: string, message: unknown, headers?: OutgoingHttpHeaders): Promise<ServerStream>;
}

export function createRpcClient(port: number): RpcClient {
  function post(path: string, contentType: string, body: Buffer, headers: OutgoingHttpHeaders) {
    return new Promise<IncomingMessage>((resolve, reject) => {
      const request = httpRequest(
        {
          host: '127.0.0.1',
          port,
          path: `/${path}`,
          method: 'POST',
          agent: false,
          headers: {
            'content-type': contentType,
            'connect-protocol-version': '1',
            'x-access-token': TOKEN,
            'content-length': body.length,
            ...headers,
          },
        },
        resolve,
      );
      request.on('error', reject);
      request.end(body);
    });
  }

  return {
    async unary(method, message, headers = {}) {
      const response = await post(method, 'application/json', Buffer.from(JSON.stringify(message)), headers);
      const chunks: Buffer[] = [];
      for await (const chunk of response) chunks.push(chunk as Buffer);
      const text = Buffer.concat(chunks).toString('utf8');
      return { status: response.statusCode ?? 0, json: JSON.parse(text) as Record<string, unknown> };
    },
    async stream(method, message, headers = {}) {
      const response = await post(method, 'application/connect+json', encodeFrame(message), headers);
      return readStream(response);
    },
  };
}

function readStream(response: IncomingMessage): ServerStream {
  const chunks = response[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  let buffer = Buffer.alloc(0);

  async function fill(bytes: number): Promise<boolean> {
    while (buffer.length < bytes) {
      const next = await chunks.next();
      if (next.done === true) return false;
      buffer = Buffer.concat([buffer, next.value]);
    }
    return true;
  }

  async function next(): Promise<Frame | undefined> {
    if (!(await fill(5))) return undefined;
    const flags = buffer.readUInt8(0);
    const length = buffer.readUInt32BE(1);
    if (!(await fill(5 + length))) throw new Error('a frame is cut off');
    const json = JSON.parse(buffer.subarray(5, 5 + length).toString('utf8')) as Record<string, unknown>;
    buffer = buffer.subarray(5 + length);
    return { flags, json };
  }

  return {
    status: response.statusCode ?? 0,
    headers: response.headers,
    next,
    async rest() {
      const frames: Frame[] = [];
      for (let frame = await next(); frame !== undefined; frame = await next()) frames.push(frame);
      return frames;
    },
    async until(condition) {
      for (let frame = await next(); frame !== undefined; frame = await next()) if (condition(frame)) return frame;
      throw new Error('the stream ended before that');
    },
    close: () => response.destroy(),
    async [Symbol.asyncDispose]() {
      response.destroy();
    },
  };
}

interface ProcessEvents {
  readonly pid: number;
  readonly stdout: string;
  readonly stderr: string;
  readonly pty: string;
  readonly end: Record<string, unknown> | undefined;
  /** The error of the end frame. */
  readonly error: { readonly code: string; readonly message: string } | undefined;
  readonly keepalives: number;
}

/** Sums up the frames of a process stream; throws when they are in an order the contract forbids. */
export function summarise(frames: readonly Frame[]): ProcessEvents {
  const output = { stdout: [] as Buffer[], stderr: [] as Buffer[], pty: [] as Buffer[] };
  let pid = 0;
  let end: Record<string, unknown> | undefined;
  let error: ProcessEvents['error'];
  let keepalives = 0;
  let closed = false;
  frames.forEach(({ flags, json }, index) => {
    if (closed) throw new Error('a frame behind the end frame');
    if ((flags & 2) !== 0) {
      closed = true;
      error = json.error as ProcessEvents['error'];
      return;
    }
    const event = json.event as Record<string, Record<string, unknown>>;
    if (end !== undefined) throw new Error('an event behind the end event');
    if (event.start !== undefined) {
      if (index !== 0) throw new Error('start is not the first event');
      pid = Number(event.start.pid);
    } else if (event.data !== undefined) {
      for (const name of ['stdout', 'stderr', 'pty'] as const) {
        if (typeof event.data[name] === 'string') output[name].push(Buffer.from(event.data[name], 'base64'));
      }
    } else if (event.end !== undefined) {
      end = event.end;
    } else if (event.keepalive !== undefined) {
      keepalives++;
    }
  });
  if (!closed) throw new Error('no end frame');
  const text = (name: keyof typeof output): string => Buffer.concat(output[name]).toString('utf8');
  return { pid, stdout: text('stdout'), stderr: text('stderr'), pty: text('pty'), end, error, keepalives };
}
