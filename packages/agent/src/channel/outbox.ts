import type { Duplex } from 'node:stream';
import { FRAME } from '../generated/protocol.ts';
import type { FrameType } from '../wire/frame-decoder.ts';
import { encodeFrame } from '../wire/frame-encoder.ts';
import { createSendQueue, type SendQueue } from './send-stream.ts';

/** What one waiting control frame costs beside its payload, bytes; so that a flood of small ones is bounded too. */
const FRAME_OVERHEAD = 64;

interface ControlFrame {
  readonly stream: number;
  readonly type: FrameType;
  readonly payload: Uint8Array;
}

/** Everything on its way to the guest: control frames first, then DATA and EOF round-robin over the streams with credit. */
export interface Outbox {
  /** Memory of the control frames that wait, bytes. */
  readonly queuedControl: number;
  /** Whether a hold is on. */
  readonly held: boolean;
  control(stream: number, type: FrameType, payload: Uint8Array): void;
  /** Starts a hold: the control frames queued so far still leave, DATA and whatever comes later waits. */
  hold(): void;
  /** Ends a hold; the frames given here leave before everything that was held. */
  resume(first?: ControlFrame): void;
  /** Opens the sending direction of a stream. */
  open(stream: number, credit: number): SendQueue;
  /** Forgets a sending direction. */
  remove(queue: SendQueue): void;
  /** Takes back the control frames of a stream that have not left; true when its REQUEST was among them. */
  withdraw(stream: number): boolean;
  /** Drops everything; nothing leaves any more. */
  close(): void;
}

/** Creates the outbox of one socket. Frames leave in one burst per turn, and only while the socket takes them. */
export function createOutbox(socket: Duplex): Outbox {
  let urgent: readonly ControlFrame[] = [];
  let ordinary: ControlFrame[] = [];
  let queuedControl = 0;
  const ready = new Set<SendQueue>();
  let held = false;
  let blocked = false;
  let scheduled = false;
  let closed = false;

  const cost = (frame: ControlFrame): number => frame.payload.length + FRAME_OVERHEAD;

  function emit({ stream, type, payload }: ControlFrame): void {
    for (const part of encodeFrame(stream, type, payload)) blocked = !socket.write(part);
  }

  function emitControl(frames: readonly ControlFrame[]): ControlFrame[] {
    let sent = 0;
    for (const frame of frames) {
      if (blocked) break;
      emit(frame);
      queuedControl -= cost(frame);
      sent++;
    }
    return frames.slice(sent);
  }

  function emitData(): void {
    while (!blocked) {
      const [queue] = ready;
      if (queue === undefined) return;
      // Taken out and put back at the end: that is what makes the turns round-robin.
      ready.delete(queue);
      const frame = queue.next();
      if (frame !== undefined) emit({ stream: queue.stream, ...frame });
      if (queue.ready) ready.add(queue);
    }
  }

  function flush(): void {
    scheduled = false;
    if (closed || blocked) return;
    socket.cork();
    urgent = emitControl(urgent);
    if (!held) {
      ordinary = emitControl(ordinary);
      emitData();
    }
    socket.uncork();
  }

  function schedule(): void {
    if (scheduled || closed || blocked) return;
    scheduled = true;
    queueMicrotask(flush);
  }

  socket.on('drain', () => {
    blocked = false;
    schedule();
  });

  return {
    get queuedControl() {
      return queuedControl;
    },
    get held() {
      return held;
    },
    control(stream, type, payload) {
      if (closed) return;
      const frame = { stream, type, payload };
      ordinary.push(frame);
      queuedControl += cost(frame);
      schedule();
    },
    hold() {
      held = true;
      urgent = [...urgent, ...ordinary];
      ordinary = [];
    },
    resume(first) {
      held = false;
      if (first !== undefined && !closed) {
        urgent = [...urgent, first];
        queuedControl += cost(first);
      }
      schedule();
    },
    open(stream, credit) {
      const queue = createSendQueue(stream, {
        credit,
        wake() {
          if (queue.ready) ready.add(queue);
          schedule();
        },
      });
      return queue;
    },
    remove(queue) {
      ready.delete(queue);
    },
    withdraw(stream) {
      let unsent = false;
      const keep = (frame: ControlFrame): boolean => {
        if (frame.stream !== stream) return true;
        queuedControl -= cost(frame);
        unsent ||= frame.type === FRAME.REQUEST;
        return false;
      };
      urgent = urgent.filter(keep);
      ordinary = ordinary.filter(keep);
      return unsent;
    },
    close() {
      closed = true;
      urgent = [];
      ordinary = [];
      queuedControl = 0;
      ready.clear();
    },
  };
}
