import type { GuestProcess, ProcessExit, ProcessOutput } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';

/** A guest process that a test writes the output and the end of. */
export interface FakeGuestProcess extends GuestProcess {
  readonly signals: readonly number[];
  readonly input: readonly string[];
  /** Hands output to the consumer; resolves when the consumer lets more follow. */
  emit(stream: ProcessOutput['stream'], data: string | Uint8Array): Promise<void>;
  /** The process is reaped; its pipes held what was emitted plus `unread` bytes of stdout. */
  reap(exit?: Partial<ProcessExit> & { readonly unread?: number }): void;
  closeOutput(): void;
  lose(): void;
  /** Lets writes to stdin through again after `blockInput`. */
  unblockInput(): void;
  blockInput(): void;
}

export function createFakeGuestProcess(
  options: {
    readonly pid?: number;
    readonly tag?: string;
    readonly config?: Uint8Array;
    readonly pty?: boolean;
    readonly stdinOpen?: boolean;
  } = {},
): FakeGuestProcess {
  const exit = Promise.withResolvers<ProcessExit>();
  const outputEnd = Promise.withResolvers<void>();
  /** Input that waits at the end is refused, as by the agent. */
  const over = Promise.withResolvers<never>();
  exit.promise.catch(() => undefined);
  over.promise.catch(() => undefined);
  outputEnd.promise.catch(() => undefined);
  const received = { stdout: 0n, stderr: 0n, pty: 0n };
  const signals: number[] = [];
  const input: string[] = [];
  let consumer: ((output: ProcessOutput) => void | Promise<void>) | undefined;
  let blocked: PromiseWithResolvers<void> | undefined;
  let stdinOpen = options.stdinOpen ?? true;
  return {
    id: 16,
    pid: options.pid ?? 42,
    tag: options.tag ?? '',
    config: options.config ?? new Uint8Array(),
    pty: options.pty ?? false,
    get stdinOpen() {
      return stdinOpen;
    },
    exit: exit.promise,
    outputEnd: outputEnd.promise,
    signals,
    input,
    received: (stream) => received[stream],
    onOutput(next) {
      consumer = next;
    },
    async writeStdin(data, signal) {
      signal?.throwIfAborted();
      const aborted = Promise.withResolvers<never>();
      signal?.addEventListener('abort', () => aborted.reject(signal.reason));
      await (blocked === undefined ? undefined : Promise.race([blocked.promise, aborted.promise, over.promise]));
      if (!stdinOpen) throw new PlatformError('conflict', 'stdin is closed');
      input.push(Buffer.from(data).toString());
    },
    async closeStdin() {
      stdinOpen = false;
      input.push('<eof>');
    },
    async signal(signal) {
      signals.push(signal);
    },
    async resize() {},
    async emit(stream, data) {
      const bytes = typeof data === 'string' ? Buffer.from(data) : data;
      received[stream] += BigInt(bytes.length);
      await consumer?.({ stream, data: bytes });
    },
    reap({ unread = 0, ...end } = {}) {
      over.reject(new PlatformError('conflict', 'the process has exited'));
      exit.resolve({
        code: 0,
        signal: 0,
        reason: 'ended',
        stdoutTotal: received.stdout + received.pty + BigInt(unread),
        stderrTotal: received.stderr,
        ...end,
      });
    },
    closeOutput: outputEnd.resolve,
    lose() {
      const error = new PlatformError('sandbox_unavailable', 'the sandbox is gone');
      exit.reject(error);
      outputEnd.reject(error);
    },
    blockInput() {
      blocked = Promise.withResolvers();
    },
    unblockInput() {
      blocked?.resolve();
      blocked = undefined;
    },
  };
}
