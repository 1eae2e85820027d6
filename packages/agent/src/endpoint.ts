import type { Duplex } from 'node:stream';

/** Where a generation's agent channel is reached; hides the difference between a virtio port, a unix socket and vsock. */
export interface ChannelEndpoint {
  /** One fresh connection; retried by the endpoint until the engine listens or the signal aborts. */
  connect(signal: AbortSignal): Promise<Duplex>;
  /** Called after QUIESCED and before a capture; a no-op where a connected channel can be captured. */
  detachForCapture(): Promise<void>;
}
