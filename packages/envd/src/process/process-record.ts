import type { GuestProcess, ProcessExit } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';
import type { ProcessConfig } from '@agentenv/protocol/process';
import { createInputQueue } from './input-queue.ts';
import type { OutputHub } from './output-hub.ts';
import { describeEnd, type ProcessEnd } from './process-end.ts';
import type { Subscriber } from './subscriber.ts';

export const SIGKILL = 9;
export const SIGTERM = 15;

/** One process as its clients see it; it lives longer than any of their streams. */
export interface ProcessRecord {
  readonly pid: number;
  readonly tag: string | undefined;
  readonly config: ProcessConfig;
  readonly pty: boolean;
  /** `running` until it is reaped, `draining` until its output is complete, then `ended`. */
  readonly state: 'running' | 'draining' | 'ended';
  /** Settles when it was reaped or the sandbox is gone. Never rejects. */
  readonly reaped: Promise<void>;
  /** How it ended, from the moment it was reaped. */
  readonly end: ProcessEnd | undefined;
  /** Settles when the state is `ended`. Never rejects. */
  readonly ended: Promise<void>;
  subscribe(): Subscriber;
  unsubscribe(subscriber: Subscriber): void;
  /** Bytes for stdin or the terminal, in the order of the calls. Rejects `internal` when stdin is closed. */
  write(data: Uint8Array, signal: AbortSignal): Promise<void>;
  /** End of file on stdin behind all input; idempotent. */
  closeStdin(): Promise<void>;
  /** SIGKILL and SIGTERM also end the wait for output that other holders of the pipes may still write. */
  signal(signal: typeof SIGKILL | typeof SIGTERM): Promise<void>;
  resize(size: { readonly cols: number; readonly rows: number }): Promise<void>;
}

export interface ProcessDescription {
  readonly tag: string | undefined;
  readonly config: ProcessConfig;
}

/** Creates the record of a process and lets its output flow into the hub: subscribe before to miss nothing. */
export function createProcessRecord(
  guest: GuestProcess,
  { tag, config }: ProcessDescription,
  hub: OutputHub,
): ProcessRecord {
  const input = createInputQueue();
  const impatient = Promise.withResolvers<void>();
  const progress = createProgress();
  const received = {
    stdout: guest.received('stdout'),
    stderr: guest.received('stderr'),
    pty: guest.received('pty'),
  };
  let stdinOpen = guest.stdinOpen;
  let state: ProcessRecord['state'] = 'running';
  let end: ProcessEnd | undefined;

  guest.onOutput((output) => {
    const room = hub.push(output);
    received[output.stream] += BigInt(output.data.length);
    progress.step();
    return room;
  });

  /** Everything the pipes held when it was reaped, unless their end comes first. */
  async function outputUntil(exit: ProcessExit): Promise<void> {
    const complete = (): boolean =>
      received[guest.pty ? 'pty' : 'stdout'] >= exit.stdoutTotal && received.stderr >= exit.stderrTotal;
    await Promise.race([guest.outputEnd, progress.until(complete)]);
  }

  async function followEnd(): Promise<void> {
    const exit = await guest.exit;
    state = 'draining';
    end = describeEnd(exit);
    reaped.resolve();
    if (exit.reason === 'deadline') impatient.resolve();
    await Promise.race([guest.outputEnd, impatient.promise.then(() => outputUntil(exit))]);
    state = 'ended';
    hub.end(end);
  }

  const reaped = Promise.withResolvers<void>();
  const ended = followEnd().catch((caught: unknown) => {
    state = 'ended';
    reaped.resolve();
    hub.fail(PlatformError.fromUnknown(caught));
  });

  return {
    pid: guest.pid,
    tag,
    config,
    pty: guest.pty,
    get state() {
      return state;
    },
    reaped: reaped.promise,
    get end() {
      return end;
    },
    ended,
    subscribe: () => hub.subscribe(),
    unsubscribe: (subscriber) => hub.unsubscribe(subscriber),
    async write(data, signal) {
      await input.run(data.length, async () => {
        if (!stdinOpen) throw new PlatformError('internal', 'stdin of the process is not open');
        if (state !== 'running') throw new PlatformError('not_found', `process ${guest.pid} has ended`);
        await guest.writeStdin(data, signal).catch((caught: unknown) => {
          const error = PlatformError.fromUnknown(caught);
          throw error.code === 'conflict' ? new PlatformError('internal', error.message, { cause: error }) : error;
        });
      });
    },
    async closeStdin() {
      await input.run(0, async () => {
        if (!stdinOpen) return;
        stdinOpen = false;
        await guest.closeStdin();
      });
    },
    async signal(signal) {
      if (state === 'running') await guest.signal(signal);
      impatient.resolve();
    },
    resize: (size) => guest.resize(size),
  };
}

/** Lets one waiter look at a condition again after each step. */
function createProgress(): { step(): void; until(condition: () => boolean): Promise<void> } {
  let waiter: PromiseWithResolvers<void> | undefined;
  return {
    step() {
      waiter?.resolve();
      waiter = undefined;
    },
    async until(condition) {
      while (!condition()) {
        waiter ??= Promise.withResolvers();
        await waiter.promise;
      }
    },
  };
}
