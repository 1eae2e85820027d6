import { ProtocolViolation } from '../wire/protocol-violation.ts';

/** Windows a consumer must have kept up with, before it gets one of twice the size. */
const WINDOWS_UNTIL_GROWTH = 4;

/**
 * Credit of one direction of a stream, seen from the receiver. Every byte of the window is in one of three places:
 * granted to the sender, held by us until its consumer settled, or owed (settled, not granted again yet).
 */
export interface ReceiveWindow {
  /** Received bytes; they stay held until `settle`. @throws ProtocolViolation beyond what was granted. */
  receive(bytes: number): void;
  /** The consumer is done with bytes; grants once a quarter of the window is owed. */
  settle(bytes: number): void;
  /** Grants the whole window; nothing is granted before. */
  open(): void;
  /** Grants whatever is owed now, if the window is open. */
  flush(): void;
  /** The sender's credit became zero (new generation): grants everything that is not held. */
  restart(): void;
}

export interface ReceiveWindowOptions {
  /** At first, bytes. */
  readonly size: number;
  /**
   * What it may grow to while its consumer holds nothing back, bytes; missing: it never grows. A small window keeps what a
   * slow consumer holds small, and a fast one waiting for the guest.
   */
  readonly limit?: number | undefined;
  /** Sends credit to the guest; false when credit cannot be sent now, the bytes then stay owed. */
  readonly grant: (bytes: number) => boolean;
}

/** Creates a window that has granted nothing yet. */
export function createReceiveWindow(options: ReceiveWindowOptions): ReceiveWindow {
  const { grant, limit = options.size } = options;
  let { size } = options;
  /** Bytes in a row of which the consumer held none back. */
  let keptUp = 0;
  let granted = 0;
  let held = 0;
  let opened = false;

  function grantOwed(atLeast: number): void {
    const owed = size - granted - held;
    if (opened && owed >= atLeast && grant(owed)) granted += owed;
  }

  return {
    receive(bytes) {
      if (bytes > granted) throw new ProtocolViolation(`${bytes} bytes received against a credit of ${granted}`);
      granted -= bytes;
      held += bytes;
    },
    settle(bytes) {
      held -= bytes;
      keptUp = held === 0 ? keptUp + bytes : 0;
      if (size < limit && keptUp >= size * WINDOWS_UNTIL_GROWTH) {
        size = Math.min(size * 2, limit);
        keptUp = 0;
      }
      grantOwed(size / 4);
    },
    open() {
      opened = true;
      grantOwed(1);
    },
    flush: () => grantOwed(1),
    restart() {
      granted = 0;
      grantOwed(1);
    },
  };
}
