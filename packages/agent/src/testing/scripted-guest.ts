import { type Duplex, duplexPair } from 'node:stream';
import { type Clock, type Log, SILENT_LOG } from '@agentenv/core';
import { createSeededRandom } from '@agentenv/core/testing';
import type { Agent } from '../agent.ts';
import type { OperationName, ResponseBody } from '../channel/calls.ts';
import { createAgent } from '../client/create-agent.ts';
import { EVENTS, FRAME, OPERATIONS, STATUS } from '../generated/protocol.ts';
import type { Body } from '../wire/body-types.ts';
import { decodeBody } from '../wire/decode-body.ts';
import { encodeBody } from '../wire/encode-body.ts';
import type { FrameType } from '../wire/frame-decoder.ts';
import { testClock } from './test-clock.ts';

/** A frame the host sent. */
export interface HostFrame {
  readonly stream: number;
  readonly type: number;
  readonly payload: Buffer;
}

/** A request the host sent. */
export interface HostRequest<Name extends OperationName> {
  readonly stream: number;
  readonly deadlineMs: number;
  readonly body: Body<(typeof OPERATIONS)[Name]['request']>;
}

type EventName = keyof typeof EVENTS;

/** The guest's end of a channel in the hands of a test: sees every frame of the host, sends what it is told to. */
export interface ScriptedGuest {
  /** The host's end. */
  readonly socket: Duplex;
  /** Frames received and not yet taken by `take` or `request`. */
  readonly pending: readonly HostFrame[];
  /** Answers the resync record that comes next with `NONCE NONCE` and returns the record. */
  resync(): Promise<{ readonly key: Buffer; readonly nonce: Buffer }>;
  /** Removes and returns the first frame that matches, waiting for it. */
  take(type: FrameType, stream?: number): Promise<HostFrame>;
  request<Name extends OperationName>(name: Name): Promise<HostRequest<Name>>;
  send(stream: number, type: FrameType, payload?: Uint8Array): void;
  credit(stream: number, bytes: number): void;
  respond<Name extends OperationName>(stream: number, name: Name, body: ResponseBody<Name>): void;
  fail(stream: number, status: keyof typeof STATUS, message?: string, errno?: number): void;
  event<Name extends EventName>(stream: number, name: Name, body: Body<(typeof EVENTS)[Name]['body']>): void;
  raw(bytes: Uint8Array): void;
  /** From now on the host's frames are left lying. */
  stopReading(): void;
  /** Ends the connection from the guest's side. */
  end(): void;
}

const HEADER_BYTES = 9;
const LIMIT = 1_048_576;

/** One frame as bytes. */
export function frameBytes(stream: number, type: number, payload: Uint8Array = new Uint8Array(0)): Buffer {
  const frame = Buffer.alloc(HEADER_BYTES + payload.length);
  frame.writeUInt32LE(payload.length, 0);
  frame.writeUInt32LE(stream, 4);
  frame.writeUInt8(type, 8);
  frame.set(payload, HEADER_BYTES);
  return frame;
}

/** A u32 as a payload. */
export function u32Bytes(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

/** Creates a guest that does nothing by itself. */
export function createScriptedGuest(): ScriptedGuest {
  const [socket, guest] = duplexPair({ highWaterMark: 65_536 });
  let received = Buffer.alloc(0);
  let synchronised = false;
  const pending: HostFrame[] = [];
  const waiting = new Set<() => void>();

  function parse(): void {
    while (synchronised && received.length >= HEADER_BYTES) {
      const length = received.readUInt32LE(0);
      if (received.length < HEADER_BYTES + length) break;
      pending.push({
        stream: received.readUInt32LE(4),
        type: received.readUInt8(8),
        payload: Buffer.from(received.subarray(HEADER_BYTES, HEADER_BYTES + length)),
      });
      received = received.subarray(HEADER_BYTES + length);
    }
  }

  guest.on('data', (chunk: Buffer) => {
    received = Buffer.concat([received, chunk]);
    parse();
    for (const wake of [...waiting]) wake();
  });
  // The host destroys its end; what that does to ours is of no interest to a test.
  guest.on('error', () => {});

  async function until<T>(what: string, look: () => T | undefined): Promise<T> {
    const found = look();
    if (found !== undefined) return found;
    const { promise, resolve, reject } = Promise.withResolvers<T>();
    const wake = (): void => {
      const now = look();
      if (now === undefined) return;
      waiting.delete(wake);
      resolve(now);
    };
    waiting.add(wake);
    using _timer = testClock.timer(5000, () => reject(new Error(`the host did not send ${what}`)));
    try {
      return await promise;
    } finally {
      waiting.delete(wake);
    }
  }

  function takeFirst(matches: (frame: HostFrame) => boolean): HostFrame | undefined {
    const index = pending.findIndex(matches);
    return index < 0 ? undefined : pending.splice(index, 1)[0];
  }

  const send = (stream: number, type: number, payload?: Uint8Array): void => {
    guest.write(frameBytes(stream, type, payload));
  };

  return {
    socket,
    pending,
    async resync() {
      const record = await until('a resync record', () =>
        received.length >= 32 ? received.subarray(0, 32) : undefined,
      );
      const key = Buffer.from(record.subarray(0, 16));
      const nonce = Buffer.from(record.subarray(16));
      received = received.subarray(32);
      synchronised = true;
      guest.write(Buffer.concat([nonce, nonce]));
      parse();
      return { key, nonce };
    },
    take: (type, stream) =>
      until(`a frame of type ${type}`, () =>
        takeFirst((frame) => frame.type === type && (stream === undefined || frame.stream === stream)),
      ),
    async request(name) {
      const { op, request } = OPERATIONS[name];
      const frame = await until(`a ${name} request`, () =>
        takeFirst(({ type, payload }) => type === FRAME.REQUEST && payload.readUInt16LE() === op),
      );
      return {
        stream: frame.stream,
        deadlineMs: frame.payload.readUInt32LE(2),
        body: decodeBody<(typeof OPERATIONS)[typeof name]['request']>(request, frame.payload.subarray(6)),
      };
    },
    send,
    credit: (stream, bytes) => send(stream, FRAME.CREDIT, u32Bytes(bytes)),
    respond(stream, name, body) {
      const layout = OPERATIONS[name].response;
      const payload = encodeBody<(typeof OPERATIONS)[typeof name]['response']>(layout, body, {
        limit: LIMIT,
        prefix: 4,
      });
      payload.writeUInt32LE(STATUS.OK, 0);
      send(stream, FRAME.RESPONSE, payload);
    },
    fail(stream, status, message = '', errno = 0) {
      const payload = encodeBody(
        [
          ['status', 'u32'],
          ['errno', 'u32'],
          ['message', 'str'],
        ],
        { status: STATUS[status], errno, message },
        { limit: LIMIT },
      );
      send(stream, FRAME.RESPONSE, payload);
    },
    event(stream, name, body) {
      const { kind, body: layout } = EVENTS[name];
      const payload = encodeBody<(typeof EVENTS)[typeof name]['body']>(layout, body, { limit: LIMIT, prefix: 2 });
      payload.writeUInt16LE(kind, 0);
      send(stream, FRAME.EVENT, payload);
    },
    raw(bytes) {
      guest.write(bytes);
    },
    stopReading() {
      guest.pause();
    },
    end() {
      guest.end();
    },
  };
}

export interface ScriptedAgentOptions {
  readonly clock?: Clock;
  readonly log?: Log;
  readonly processes?: ResponseBody<'listProcesses'>['processes'];
}

/** An agent that is already connected to a scripted guest. */
export async function connectScriptedAgent(
  options: ScriptedAgentOptions = {},
): Promise<{ readonly agent: Agent; readonly guest: ScriptedGuest }> {
  const guest = createScriptedGuest();
  const connecting = createAgent({
    socket: guest.socket,
    key: new Uint8Array(16).fill(7),
    clock: options.clock ?? testClock,
    rng: createSeededRandom(1),
    log: options.log ?? SILENT_LOG,
  });
  await guest.resync();
  const list = await guest.request('listProcesses');
  guest.respond(list.stream, 'listProcesses', { processes: options.processes ?? [] });
  return { agent: await connecting, guest };
}
