import { randomBytes } from 'node:crypto';
import type { Duplex } from 'node:stream';

/** Frame types and the few operations these tests need; the numbers are those of guest/PROTOCOL.md. */
export const FRAME = { data: 0, eof: 1, credit: 2, reset: 3, request: 4, response: 5, event: 6 } as const;
export const OP = { ping: 1, activate: 2, spawn: 10, signal: 11, list: 13, stat: 21, source: 50, sink: 51 } as const;
export const STATUS = { ok: 0, protocol: 17, unsupported: 18 } as const;

const HEADER = 9;
const PATIENCE_MS = 20_000;

export interface RawFrame {
  readonly stream: number;
  readonly type: number;
  readonly payload: Buffer;
}

export const u16 = (value: number): Buffer => {
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16LE(value);
  return bytes;
};
export const u32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
};
export const u64 = (value: bigint): Buffer => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(value);
  return bytes;
};
export const str = (text: string | Uint8Array): Buffer =>
  Buffer.concat([u32(Buffer.from(text).length), Buffer.from(text)]);
export const frame = (stream: number, type: number, payload: Uint8Array = Buffer.alloc(0)): Buffer =>
  Buffer.concat([u32(payload.length), u32(stream), Buffer.from([type]), payload]);
export const request = (stream: number, op: number, body: Uint8Array = Buffer.alloc(0), deadlineMs = 0): Buffer =>
  frame(stream, FRAME.request, Buffer.concat([u16(op), u32(deadlineMs), body]));
/** Fresh, and without zero bytes as the protocol wants it for guests without a key. */
export const freshNonce = (): Buffer => Buffer.from(randomBytes(16).map((byte) => byte || 1));

/** Bytes in, frames out: no protocol knowledge beyond the frame header, so that everything wrong can be sent. */
export interface RawConnection extends Disposable {
  send(...bytes: readonly Uint8Array[]): void;
  /** The next frame that matches; others are kept. @throws when none comes in time. */
  frame(matches: (frame: RawFrame) => boolean, patienceMs?: number): Promise<RawFrame>;
  /** Whether no frame comes for that long. */
  silentFor(milliseconds: number): Promise<boolean>;
  /** Sends a record and discards everything up to its answer. */
  resync(key?: Uint8Array, nonce?: Uint8Array): Promise<void>;
  /** Discards everything up to the answer to a record that was sent already. */
  answerTo(nonce: Uint8Array): Promise<void>;
}

export function createRawConnection(socket: Duplex): RawConnection {
  let pending = Buffer.alloc(0);
  let awaited: Buffer | undefined;
  const frames: RawFrame[] = [];
  const listeners = new Set<() => void>();

  function parse(): void {
    if (awaited !== undefined) {
      const at = pending.indexOf(awaited);
      if (at < 0) return;
      pending = pending.subarray(at + awaited.length);
      awaited = undefined;
    }
    while (pending.length >= HEADER && pending.length >= HEADER + pending.readUInt32LE(0)) {
      const end = HEADER + pending.readUInt32LE(0);
      frames.push({
        stream: pending.readUInt32LE(4),
        type: pending.readUInt8(8),
        payload: pending.subarray(HEADER, end),
      });
      pending = pending.subarray(end);
    }
  }

  socket.on('data', (chunk: Buffer) => {
    pending = Buffer.concat([pending, chunk]);
    parse();
    for (const listener of [...listeners]) listener();
  });
  socket.on('error', () => {});

  /** Resolves with what `look` finds, now or after any later input; undefined when nothing comes in time. */
  function until<Found>(look: () => Found | undefined, patienceMs: number): Promise<Found | undefined> {
    return new Promise((resolve) => {
      const finish = (found: Found | undefined): void => {
        clearTimeout(timer);
        listeners.delete(check);
        resolve(found);
      };
      const check = (): void => {
        const found = look();
        if (found !== undefined) finish(found);
      };
      const timer = setTimeout(() => finish(undefined), patienceMs);
      listeners.add(check);
      check();
    });
  }

  async function answerTo(nonce: Uint8Array): Promise<void> {
    awaited = Buffer.concat([nonce, nonce]);
    frames.length = 0;
    parse();
    const found = await until(() => (awaited === undefined ? true : undefined), PATIENCE_MS);
    if (found === undefined) throw new Error('the guest did not answer the resync');
  }

  return {
    send(...bytes) {
      socket.write(Buffer.concat(bytes));
    },
    async frame(matches, patienceMs = PATIENCE_MS) {
      const found = await until(() => {
        const index = frames.findIndex(matches);
        return index < 0 ? undefined : frames.splice(index, 1)[0];
      }, patienceMs);
      if (found === undefined) throw new Error('the frame did not come');
      return found;
    },
    async silentFor(milliseconds) {
      return (await until(() => frames[0], milliseconds)) === undefined;
    },
    async resync(key = new Uint8Array(16), nonce = freshNonce()) {
      socket.write(Buffer.concat([key, nonce]));
      await answerTo(nonce);
    },
    answerTo,
    /** Vanishes without any farewell. */
    [Symbol.dispose]() {
      socket.destroy();
    },
  };
}
