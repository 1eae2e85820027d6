import { type Log, PlatformError } from '@agentenv/core';
import type { GuestProcess, ProcessExit, ProcessOutput } from '../agent.ts';
import type { Calls } from '../channel/calls.ts';
import type { Channel } from '../channel/channel.ts';
import { EVENTS, LIMITS } from '../generated/protocol.ts';
import { decodeBody } from '../wire/decode-body.ts';
import { ProtocolViolation } from '../wire/protocol-violation.ts';
import { DEADLINES } from './deadlines.ts';
import { createOutputFlow } from './output-flow.ts';

/** What is known about a process when it is started or found. */
export interface ProcessFacts {
  readonly id: number;
  readonly pid: number;
  readonly tag: string;
  readonly config: Uint8Array;
  readonly pty: boolean;
  readonly stdinOpen: boolean;
  /** What happened to the output (the terminal's is `stdout`) before this epoch: bytes sent, EOF sent. */
  readonly stdout: { readonly sent: bigint; readonly ended: boolean };
  readonly stderr: { readonly sent: bigint; readonly ended: boolean };
  /** Set when it was reaped before this epoch. */
  readonly exit: ProcessExit | undefined;
}

export interface ProcessOptions {
  readonly channel: Channel;
  readonly calls: Calls;
  readonly log: Log;
  /** Called once, when the process was reaped and its output was handed on. */
  readonly onFinished: () => void;
}

const EXIT_REASONS: ReadonlyMap<number, ProcessExit['reason']> = new Map([
  [0, 'ended'],
  [1, 'deadline'],
]);

function decodeExit(kind: number, payload: Buffer): ProcessExit {
  if (kind !== EVENTS.exit.kind) throw new ProtocolViolation(`event kind ${kind} on a process stream`);
  const { reason: reasonCode, ...exit } = decodeBody(EVENTS.exit.body, payload);
  const reason = EXIT_REASONS.get(reasonCode);
  if (reason === undefined) throw new ProtocolViolation(`exit reason ${reasonCode}`);
  return { ...exit, reason };
}

/** Registers the streams of a process that the guest has just reported; call it while the report is being handled. */
export function createProcess(facts: ProcessFacts, { channel, calls, log, onFinished }: ProcessOptions): GuestProcess {
  const { id } = facts;
  const exit = Promise.withResolvers<ProcessExit>();
  const outputEnd = Promise.withResolvers<void>();
  // Not everybody waits for both; a lost channel must not become an unhandled rejection.
  exit.promise.catch(() => {});
  outputEnd.promise.catch(() => {});
  let exited = false;
  let outputOver = false;

  function finishIfOver(): void {
    if (!exited || !outputOver) return;
    main.release();
    onFinished();
  }

  function onExit(how: ProcessExit): void {
    exited = true;
    stdin?.release(new PlatformError('conflict', 'the process has exited', { details: { process: id } }));
    exit.resolve(how);
    finishIfOver();
  }

  const main = channel.stream(id, {
    event(kind, payload) {
      const how = decodeExit(kind, payload);
      if (exited) throw new ProtocolViolation(`second exit of process ${id}`);
      onExit(how);
    },
    lost(error) {
      exited = true;
      exit.reject(error);
      if (channel.failure === undefined) finishIfOver();
    },
  });

  const stdin = facts.stdinOpen
    ? channel.stream(id + 1, { lost() {} }, { sendCredit: LIMITS.STREAM_WINDOW })
    : undefined;

  const output = createOutputFlow({
    channel,
    log: log.child({ process: id }),
    sources: facts.pty
      ? [{ stream: 'pty', id: id + 2, ...facts.stdout }]
      : [
          { stream: 'stdout', id: id + 2, ...facts.stdout },
          { stream: 'stderr', id: id + 3, ...facts.stderr },
        ],
    onEnd(error) {
      outputOver = true;
      if (error === undefined) outputEnd.resolve();
      else outputEnd.reject(error);
      if (channel.failure === undefined) finishIfOver();
    },
  });

  if (facts.exit !== undefined) onExit(facts.exit);

  /** Why stdin takes nothing: the lost channel, else that it is closed. */
  const stdinClosed = (cause?: unknown): PlatformError =>
    channel.failure ??
    new PlatformError('conflict', exited ? 'the process has exited' : 'stdin is closed', {
      details: { process: id },
      cause,
    });

  return {
    id,
    pid: facts.pid,
    tag: facts.tag,
    config: facts.config,
    pty: facts.pty,
    get stdinOpen() {
      return stdin?.sender?.writable ?? false;
    },
    exit: exit.promise,
    outputEnd: outputEnd.promise,
    received: (stream) => output.received(stream),
    onOutput(consumer: (output: ProcessOutput) => void | Promise<void>) {
      output.consume(consumer);
    },
    async writeStdin(data, signal) {
      if (stdin?.sender?.writable !== true) throw stdinClosed();
      try {
        await stdin.sender.write(data, signal);
      } catch (caught) {
        if (signal?.aborted === true) throw caught;
        throw stdinClosed(caught);
      }
    },
    async closeStdin() {
      if (channel.failure !== undefined) throw channel.failure;
      if (stdin?.sender?.writable !== true) return;
      try {
        await stdin.sender.end();
      } catch (caught) {
        // Its reader went away meanwhile: closed is what was asked for.
        if (channel.failure !== undefined) throw caught;
      }
    },
    async signal(signal) {
      await calls.call('signal', { process: id, signal }, { deadlineMs: DEADLINES.signal });
    },
    async resize({ cols, rows }) {
      await calls.call('resize', { process: id, cols, rows }, { deadlineMs: DEADLINES.resize });
    },
  };
}
