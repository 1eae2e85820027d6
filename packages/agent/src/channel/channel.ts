import type { Duplex } from 'node:stream';
import { type Log, PlatformError } from '@agentenv/core';
import type { ChannelClosed } from '../agent.ts';
import { FRAME, LIMITS, STATUS } from '../generated/protocol.ts';
import { createFrameDecoder, type FrameType } from '../wire/frame-decoder.ts';
import { ProtocolViolation } from '../wire/protocol-violation.ts';
import { createResyncScanner } from '../wire/resync-scanner.ts';
import { createOutbox } from './outbox.ts';
import { createReceiveWindow, type ReceiveWindow } from './receive-window.ts';
import type { SendQueue, SendStream } from './send-stream.ts';
import { errorOfReset } from './status.ts';

/** Waiting control frames beyond this, bytes of memory, mean that the guest reads no more. */
const MAX_QUEUED_CONTROL = 8 * 1024 * 1024;

/** First id of a request (guest/PROTOCOL.md, "Stream ids"). */
const FIRST_STREAM = 16;
/** Ids each request owns. */
export const STREAM_STEP = 4;
/** Ids from here on belong to streams the guest opens. */
export const GUEST_STREAMS = 0x8000_0000;
/** The first request of an epoch, when it is not known yet which ids the guest remembers. */
const BOOTSTRAP_STREAM = GUEST_STREAMS - STREAM_STEP;

/** What happens on a stream; a frame without its handler breaks the protocol. Handlers are called in arrival order, never after `release`. */
export interface StreamEvents {
  /** A piece of DATA. Its credit returns by `settle`. */
  data?(piece: Buffer): void;
  eof?(): void;
  response?(payload: Buffer): void;
  event?(kind: number, payload: Buffer): void;
  /** The guest reset the stream or the channel ended; nothing follows. */
  lost(error: PlatformError): void;
}

export interface StreamOptions {
  /** Size in bytes of the guest-to-host window; missing: the guest may not send DATA. */
  readonly receiveWindow?: number;
  /** Size in bytes it may grow to while its consumer keeps up. */
  readonly receiveWindowLimit?: number;
  /** Initial host-to-guest credit in bytes; missing: the host does not send. */
  readonly sendCredit?: number;
}

/** One stream of the channel. */
export interface ChannelStream {
  readonly id: number;
  /** The host-to-guest direction; undefined without `sendCredit`. */
  readonly sender: SendStream | undefined;
  /** Grants the receive window for the first time. */
  open(): void;
  /** Returns the credit of consumed bytes. */
  settle(bytes: number): void;
  /**
   * Ends both directions now, in the guest too; a REQUEST that has not left is taken back instead. Pending writes reject,
   * with the error if given.
   */
  reset(error?: PlatformError): void;
  /** Forgets the stream: it ended in both directions. Pending writes reject, with the error if given. */
  release(error?: PlatformError): void;
}

/** One epoch of the agent channel: a socket, its streams and their credit. Never throws at the server: it closes instead. */
export interface Channel {
  readonly closed: Promise<ChannelClosed>;
  /** Resolves with the bytes thrown away when the guest answered the resync; rejects when the channel closes before. */
  readonly synchronised: Promise<number>;
  /** undefined while the channel is usable, else the error of every call. */
  readonly failure: PlatformError | undefined;
  /** Memory of the control frames that wait, bytes. */
  readonly queuedControl: number;
  /** A stream id for a new request. */
  allocate(): number;
  /** Keeps `allocate` away from an id the guest remembers. @throws ProtocolViolation when it is no id of a request. */
  reserve(id: number): void;
  /** Registers a stream. @throws ProtocolViolation when the id, which the guest may have chosen, is in use. */
  stream(id: number, events: StreamEvents, options?: StreamOptions): ChannelStream;
  control(stream: number, type: FrameType, payload: Uint8Array): void;
  /** Tells the guest to end a stream that is not registered here, or whose registration stays. */
  reset(stream: number): void;
  /** Whatever is queued from now on waits for `resume`, and no credit is granted until `grantCredit`. */
  hold(): void;
  /**
   * Ends a hold with a frame that leaves before everything that waited. No credit is granted until `grantCredit`, as the
   * guest may zero its own at an unknown moment in between.
   */
  resumeWith(stream: number, type: FrameType, payload: Uint8Array): void;
  /** Ends a hold; grants what is owed, or everything anew when the guest has `zeroed` its credit. */
  grantCredit(guestCredit: 'kept' | 'zeroed'): void;
  /** Ends every stream that the filter takes, here (by `lost`) and in the guest. */
  drop(filter: (id: number) => boolean, error: PlatformError): void;
  close(kind: ChannelClosed['kind'], reason: string): void;
}

export interface ChannelOptions {
  readonly socket: Duplex;
  /** Secret of the guest's generation, 16 bytes; all zero for a guest that was never activated. */
  readonly key: Uint8Array;
  /** Fresh and unpredictable, 16 bytes. */
  readonly nonce: Uint8Array;
  readonly log: Log;
}

interface Entry {
  readonly events: StreamEvents;
  readonly window: ReceiveWindow | undefined;
  readonly queue: SendQueue | undefined;
  eof: boolean;
}

const u32 = (value: number): Buffer => {
  const bytes = Buffer.allocUnsafe(4);
  bytes.writeUInt32LE(value);
  return bytes;
};

/** Starts a resync on a connected socket; the socket belongs to the channel from here on and is read always. */
export function createChannel({ socket, key, nonce, log }: ChannelOptions): Channel {
  const outbox = createOutbox(socket);
  const streams = new Map<number, Entry>();
  const closed = Promise.withResolvers<ChannelClosed>();
  const synchronised = Promise.withResolvers<number>();
  // A failed resync may have no listener yet; whoever awaits it later still sees the rejection.
  synchronised.promise.catch(() => {});
  let failure: PlatformError | undefined;
  let bootstrapped = false;
  let nextStream = FIRST_STREAM;
  let creditPaused = false;

  const grant = (stream: number) => (bytes: number) => {
    if (creditPaused || failure !== undefined) return false;
    control(stream, FRAME.CREDIT, u32(bytes));
    return true;
  };
  const channelWindow = createReceiveWindow({ size: LIMITS.CHANNEL_WINDOW, grant: grant(0) });

  function control(stream: number, type: FrameType, payload: Uint8Array): void {
    outbox.control(stream, type, payload);
    if (outbox.queuedControl > MAX_QUEUED_CONTROL) close('protocol', 'the guest reads no more');
  }

  const reset = (stream: number): void => control(stream, FRAME.RESET, u32(STATUS.CANCELED));

  function remove(id: number, entry: Entry, error: PlatformError): boolean {
    if (streams.get(id) !== entry) return false;
    streams.delete(id);
    if (entry.queue !== undefined) {
      outbox.remove(entry.queue);
      entry.queue.fail(error);
    }
    return true;
  }

  function drop(filter: (id: number) => boolean, error: PlatformError): void {
    for (const [id, entry] of [...streams]) {
      if (!filter(id) || !remove(id, entry, error)) continue;
      if (failure === undefined && !outbox.withdraw(id)) reset(id);
      entry.events.lost(error);
    }
  }

  function close(kind: ChannelClosed['kind'], reason: string): void {
    if (failure !== undefined) return;
    failure = new PlatformError('sandbox_unavailable', 'the guest agent is not reachable', {
      details: { kind, reason },
    });
    outbox.close();
    socket.destroy();
    if (kind === 'protocol') log.warn({ reason }, 'agent channel closed: protocol error');
    else log.debug({ kind, reason }, 'agent channel closed');
    synchronised.reject(failure);
    drop(() => true, failure);
    closed.resolve({ kind, reason });
  }

  const unexpected = (stream: number, what: string): ProtocolViolation =>
    new ProtocolViolation(`unexpected ${what} on stream ${stream}`);

  function onControl(stream: number, type: FrameType, payload: Buffer): void {
    const entry = streams.get(stream);
    // In flight when the stream ended.
    if (entry === undefined) return;
    const { events } = entry;
    if (type === FRAME.CREDIT) {
      entry.queue?.addCredit(payload.readUInt32LE());
    } else if (type === FRAME.RESET) {
      const error = errorOfReset(payload.readUInt32LE());
      remove(stream, entry, error);
      events.lost(error);
    } else if (type === FRAME.EOF) {
      if (events.eof === undefined || entry.eof) throw unexpected(stream, 'EOF');
      entry.eof = true;
      events.eof();
    } else if (type === FRAME.RESPONSE) {
      if (events.response === undefined) throw unexpected(stream, 'RESPONSE');
      events.response(payload);
    } else {
      if (events.event === undefined) throw unexpected(stream, 'EVENT');
      events.event(payload.readUInt16LE(), payload.subarray(2));
    }
  }

  const decoder = createFrameDecoder({
    data(stream, piece) {
      if (failure !== undefined) return;
      channelWindow.receive(piece.length);
      // The host always reads, so the channel's credit returns at once; what a slow consumer holds is its stream's.
      channelWindow.settle(piece.length);
      const entry = streams.get(stream);
      if (entry === undefined) return;
      if (entry.events.data === undefined || entry.window === undefined || entry.eof) throw unexpected(stream, 'DATA');
      entry.window.receive(piece.length);
      entry.events.data(piece);
    },
    control(stream, type, payload) {
      if (failure === undefined) onControl(stream, type, payload);
    },
  });

  let scanner: ReturnType<typeof createResyncScanner> | undefined = createResyncScanner(nonce);

  function receive(chunk: Buffer): void {
    if (failure !== undefined) return;
    let rest: Buffer | undefined = chunk;
    if (scanner !== undefined) {
      rest = scanner.push(chunk);
      if (rest === undefined) return;
      synchronised.resolve(scanner.discarded);
      scanner = undefined;
      channelWindow.open();
    }
    decoder.push(rest);
  }

  socket.on('data', (chunk: Buffer) => {
    try {
      receive(chunk);
    } catch (caught) {
      if (caught instanceof ProtocolViolation) return close('protocol', caught.message);
      log.error({ err: caught }, 'agent channel: unexpected error while handling a frame');
      close('closed', 'internal error');
    }
  });
  socket.on('error', (error) => close('disconnected', error.message));
  socket.on('end', () => close('disconnected', 'the guest agent ended the connection'));
  socket.on('close', () => close('disconnected', 'the connection is gone'));
  socket.write(Buffer.concat([key, nonce]));

  return {
    closed: closed.promise,
    synchronised: synchronised.promise,
    get failure() {
      return failure;
    },
    get queuedControl() {
      return outbox.queuedControl;
    },
    allocate() {
      if (!bootstrapped) {
        bootstrapped = true;
        return BOOTSTRAP_STREAM;
      }
      const id = nextStream;
      nextStream += STREAM_STEP;
      if (nextStream >= BOOTSTRAP_STREAM) close('closed', 'the stream ids of this epoch are used up');
      return id;
    },
    reserve(id) {
      if (id < FIRST_STREAM || id >= GUEST_STREAMS || id % STREAM_STEP !== 0) {
        throw new ProtocolViolation(`${id} is no stream of a request`);
      }
      nextStream = Math.max(nextStream, id + STREAM_STEP);
    },
    stream(id, events, options = {}) {
      const entry: Entry = {
        events,
        window:
          options.receiveWindow === undefined
            ? undefined
            : createReceiveWindow({ size: options.receiveWindow, limit: options.receiveWindowLimit, grant: grant(id) }),
        queue: options.sendCredit === undefined ? undefined : outbox.open(id, options.sendCredit),
        eof: false,
      };
      if (streams.has(id)) throw new ProtocolViolation(`stream ${id} is in use`);
      streams.set(id, entry);
      const ended = (): PlatformError => new PlatformError('canceled', 'the stream has ended');
      return {
        id,
        sender: entry.queue,
        open: () => entry.window?.open(),
        settle: (bytes) => {
          if (streams.get(id) === entry) entry.window?.settle(bytes);
        },
        reset(error) {
          if (!remove(id, entry, error ?? ended())) return;
          if (!outbox.withdraw(id)) reset(id);
        },
        release(error) {
          remove(id, entry, error ?? ended());
        },
      };
    },
    control,
    reset,
    hold() {
      creditPaused = true;
      outbox.hold();
    },
    resumeWith(stream, type, payload) {
      creditPaused = true;
      outbox.resume({ stream, type, payload });
    },
    grantCredit(guestCredit) {
      creditPaused = false;
      if (outbox.held) outbox.resume();
      const windows = [channelWindow, ...[...streams.values()].flatMap((entry) => entry.window ?? [])];
      for (const window of windows) {
        if (guestCredit === 'zeroed') window.restart();
        else window.flush();
      }
    },
    drop,
    close,
  };
}
