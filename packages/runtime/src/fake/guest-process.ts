import type { GuestProcess, ProcessExit, ProcessOutput } from '@agentenv/agent';
import { type Clock, PlatformError } from '@agentenv/core';
import { Countdown } from './countdown.ts';
import type { Program } from './guest-commands.ts';
import { guestError } from './guest-error.ts';

/** Output a process may have ahead of its consumer before it blocks, bytes; the pipe and window of a real guest. */
const OUTPUT_LIMIT = 320 * 1024;
const SIGKILL = 9;

type OutputStream = ProcessOutput['stream'];

/** A process as data: what a snapshot keeps of it. */
export interface ProcessImage {
  readonly id: number;
  readonly pid: number;
  readonly uid: number;
  readonly tag: string;
  readonly config: Uint8Array;
  readonly pty: boolean;
  readonly stdinOpen: boolean;
  readonly program: Program;
  /** Milliseconds of a `sleep` still to go. */
  readonly remainingMs: number | undefined;
  /** Milliseconds until the guest itself kills it. */
  readonly killInMs: number | undefined;
  readonly pending: readonly ProcessOutput[];
}

export interface FakeProcessDeps {
  readonly clock: Clock;
  /** Resolves while the guest runs; waits while it is stopped. */
  readonly running: () => Promise<void>;
  readonly onPower: (event: Extract<Program, { kind: 'power' }>['event']) => void;
}

/** A process of a fake guest. It advances only while `resume`d, and lives on in a copy of its image. */
export class FakeProcess implements GuestProcess {
  readonly id: number;
  readonly pid: number;
  readonly uid: number;
  readonly tag: string;
  readonly config: Uint8Array;
  readonly pty: boolean;
  readonly exit: Promise<ProcessExit>;
  readonly outputEnd: Promise<void>;
  readonly #deps: FakeProcessDeps;
  readonly #program: Program;
  readonly #exit = Promise.withResolvers<ProcessExit>();
  readonly #outputEnd = Promise.withResolvers<void>();
  readonly #received: Record<OutputStream, bigint> = { stdout: 0n, stderr: 0n, pty: 0n };
  readonly #produced: Record<OutputStream, bigint> = { stdout: 0n, stderr: 0n, pty: 0n };
  readonly #pending: ProcessOutput[];
  readonly #sleep: Countdown | undefined;
  readonly #deadline: Countdown | undefined;
  #pendingBytes = 0;
  #stdinOpen: boolean;
  #started = false;
  #ended: ProcessExit | undefined;
  #lost: PlatformError | undefined;
  #consumer: ((output: ProcessOutput) => void | Promise<void>) | undefined;
  #pumping = false;
  #room: { readonly promise: Promise<void>; readonly resolve: () => void } | undefined;

  constructor(image: ProcessImage, deps: FakeProcessDeps) {
    this.id = image.id;
    this.pid = image.pid;
    this.uid = image.uid;
    this.tag = image.tag;
    this.config = image.config;
    this.pty = image.pty;
    this.#stdinOpen = image.stdinOpen;
    this.#program = image.program;
    this.#deps = deps;
    this.#pending = [...image.pending];
    for (const { data } of this.#pending) this.#pendingBytes += data.byteLength;
    this.exit = this.#exit.promise;
    this.outputEnd = this.#outputEnd.promise;
    // A caller that never looks at them must not turn a lost channel into an unhandled rejection.
    this.exit.catch(() => {});
    this.outputEnd.catch(() => {});
    if (image.remainingMs !== undefined) {
      this.#sleep = new Countdown(deps.clock, image.remainingMs, () => this.#end({ code: 0, signal: 0 }));
    }
    if (image.killInMs !== undefined) {
      this.#deadline = new Countdown(deps.clock, image.killInMs, () =>
        this.#end({ code: 0, signal: SIGKILL, reason: 'deadline' }),
      );
    }
  }

  get stdinOpen(): boolean {
    return this.#stdinOpen && this.#ended === undefined;
  }

  get alive(): boolean {
    return this.#ended === undefined && this.#lost === undefined;
  }

  image(): ProcessImage {
    return {
      id: this.id,
      pid: this.pid,
      uid: this.uid,
      tag: this.tag,
      config: this.config,
      pty: this.pty,
      stdinOpen: this.#stdinOpen,
      program: this.#program,
      remainingMs: this.#sleep?.remaining,
      killInMs: this.#deadline?.remaining,
      pending: [...this.#pending],
    };
  }

  /** Starts or continues the program. */
  resume(): void {
    if (!this.alive) return;
    this.#sleep?.start();
    this.#deadline?.start();
    if (this.#started) return;
    this.#started = true;
    this.#run();
  }

  /** The guest stands still: timers keep what is left of them. */
  pause(): void {
    this.#sleep?.pause();
    this.#deadline?.pause();
  }

  /** The channel is gone for good. */
  lose(error: PlatformError): void {
    this.pause();
    if (this.#lost !== undefined) return;
    this.#lost = error;
    this.#exit.reject(error);
    this.#outputEnd.reject(error);
    this.#room?.resolve();
  }

  received(stream: OutputStream): bigint {
    return this.#received[stream];
  }

  onOutput(consumer: (output: ProcessOutput) => void | Promise<void>): void {
    if (this.#consumer !== undefined) throw new PlatformError('conflict', 'the output already has a consumer');
    this.#consumer = consumer;
    void this.#pump();
  }

  async writeStdin(data: Uint8Array, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    await this.#deps.running();
    while (this.#pendingBytes >= OUTPUT_LIMIT && this.alive) {
      this.#room ??= Promise.withResolvers<void>();
      await this.#room.promise;
      signal?.throwIfAborted();
    }
    if (this.#lost !== undefined) throw this.#lost;
    if (!this.stdinOpen) throw new PlatformError('conflict', 'stdin is closed');
    if (this.#program.kind === 'cat') this.#emit(this.pty ? 'pty' : 'stdout', data);
  }

  async closeStdin(): Promise<void> {
    await this.#deps.running();
    if (this.pty || !this.#stdinOpen) return;
    this.#stdinOpen = false;
    if (this.#program.kind === 'cat') this.#end({ code: 0, signal: 0 });
  }

  async signal(signal: number): Promise<void> {
    await this.#deps.running();
    if (!this.alive) throw guestError('NOT_FOUND', `no process with pid ${this.pid}`);
    if (signal !== 0) this.#end({ code: 0, signal });
  }

  async resize(): Promise<void> {
    await this.#deps.running();
    if (!this.pty) throw guestError('INVALID', 'the process has no terminal');
  }

  #run(): void {
    const program = this.#program;
    if (program.kind === 'power') {
      this.#deps.onPower(program.event);
    } else if (program.kind === 'result') {
      this.#emit(this.pty ? 'pty' : 'stdout', Buffer.from(program.stdout));
      this.#emit(this.pty ? 'pty' : 'stderr', Buffer.from(program.stderr));
      this.#end({ code: program.code, signal: 0 });
    } else if (program.kind === 'cat' && !this.#stdinOpen) {
      this.#end({ code: 0, signal: 0 });
    }
  }

  #emit(stream: OutputStream, data: Uint8Array): void {
    if (data.byteLength === 0) return;
    this.#pending.push({ stream, data: Uint8Array.from(data) });
    this.#pendingBytes += data.byteLength;
    this.#produced[stream] += BigInt(data.byteLength);
    void this.#pump();
  }

  #end(end: { readonly code: number; readonly signal: number; readonly reason?: 'deadline' }): void {
    if (!this.alive) return;
    this.pause();
    const stdoutTotal = this.pty ? this.#produced.pty : this.#produced.stdout;
    this.#ended = {
      code: end.code,
      signal: end.signal,
      reason: end.reason ?? 'ended',
      stdoutTotal,
      stderrTotal: this.#produced.stderr,
    };
    this.#exit.resolve(this.#ended);
    this.#room?.resolve();
    if (this.#pending.length === 0) this.#outputEnd.resolve();
    else void this.#pump();
  }

  /** Hands pending output to the consumer one piece at a time, in order, waiting for each handler. */
  async #pump(): Promise<void> {
    if (this.#pumping || this.#consumer === undefined) return;
    this.#pumping = true;
    try {
      for (let next = this.#pending[0]; next !== undefined; next = this.#pending[0]) {
        await this.#deps.running();
        await this.#consumer(next);
        this.#pending.shift();
        this.#pendingBytes -= next.data.byteLength;
        this.#received[next.stream] += BigInt(next.data.byteLength);
        this.#room?.resolve();
        this.#room = undefined;
      }
      if (this.#ended !== undefined) this.#outputEnd.resolve();
    } catch (error) {
      this.#outputEnd.reject(error);
    } finally {
      this.#pumping = false;
    }
  }
}
