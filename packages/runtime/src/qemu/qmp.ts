import type { Socket } from 'node:net';
import { type Clock, PlatformError } from '@agentenv/core';
import { parseQmpMessage, type QmpEvent, type QmpMessage } from './qmp-events.ts';

/** Longest line accepted from an engine; a ring buffer of console text is the largest answer asked for. */
const MAX_LINE = 1 << 20;
const DEFAULT_DEADLINE_MS = 10_000;
const NEWLINE = 0x0a;

export interface QmpCommandOptions {
  /** Milliseconds until the call fails with `deadline_exceeded`; 10 s unless given. */
  readonly deadlineMs?: number;
}

/** The engine's control socket. One command is answered at a time, in order; events arrive between answers. */
export interface Qmp extends AsyncDisposable {
  /** Version of the engine as its greeting says. */
  readonly version: string;
  /** Resolves when the socket is gone, by whatever cause; the engine's end is seen here, adopted or not. */
  readonly closed: Promise<void>;
  /** Rejects with `create_failed` when the engine refuses, `sandbox_unavailable` when it is gone, `deadline_exceeded`, `canceled`. */
  execute(
    command: string,
    args?: Readonly<Record<string, unknown>>,
    options?: QmpCommandOptions,
    signal?: AbortSignal,
  ): Promise<unknown>;
  /** Calls `listener` for every event until disposed. */
  subscribe(listener: (event: QmpEvent) => void): Disposable;
}

interface Waiter {
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: PlatformError) => void;
}

function gone(): PlatformError {
  return new PlatformError('sandbox_unavailable', 'the engine is gone');
}

/**
 * Speaks QMP over a connected socket; resolves after the capability negotiation.
 * A second client of the same engine connects and then hears nothing: the greeting's deadline is how that shows.
 */
export async function openQmp(socket: Socket, clock: Clock, signal?: AbortSignal): Promise<Qmp> {
  const waiters = new Map<number, Waiter>();
  const listeners = new Set<(event: QmpEvent) => void>();
  const greeting = Promise.withResolvers<string>();
  const closed = Promise.withResolvers<void>();
  let nextId = 1;
  let open = true;
  let pending: Buffer[] = [];
  let pendingBytes = 0;

  greeting.promise.catch(() => undefined);

  function close(): void {
    if (!open) return;
    open = false;
    socket.destroy();
    greeting.reject(gone());
    for (const waiter of waiters.values()) waiter.reject(gone());
    waiters.clear();
    closed.resolve();
  }

  function settle(message: QmpMessage): void {
    if (message.kind === 'greeting') {
      greeting.resolve(message.version);
      return;
    }
    if (message.kind === 'event') {
      for (const listener of [...listeners]) listener(message.event);
      return;
    }
    const waiter = waiters.get(message.id);
    waiters.delete(message.id);
    if (message.kind === 'return') waiter?.resolve(message.value);
    else waiter?.reject(new PlatformError('create_failed', `the engine refused: ${message.description}`));
  }

  function onLine(line: string): void {
    if (line.trim() === '') return;
    try {
      settle(parseQmpMessage(line));
    } catch {
      // An engine that no longer speaks QMP is not under control; its socket closes and with it the sandbox ends.
      close();
    }
  }

  function onData(chunk: Buffer): void {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0 && open; end = chunk.indexOf(NEWLINE, start)) {
      const line = Buffer.concat([...pending, chunk.subarray(start, end)]).toString('utf8');
      pending = [];
      pendingBytes = 0;
      start = end + 1;
      onLine(line);
    }
    if (start === chunk.length) return;
    pending.push(chunk.subarray(start));
    pendingBytes += chunk.length - start;
    if (pendingBytes > MAX_LINE) close();
  }

  socket.on('data', onData);
  socket.on('error', close);
  socket.on('close', close);
  if (socket.destroyed) close();

  function execute(
    command: string,
    args: Readonly<Record<string, unknown>> = {},
    options: QmpCommandOptions = {},
    abort?: AbortSignal,
  ): Promise<unknown> {
    if (!open) return Promise.reject(gone());
    if (abort?.aborted) return Promise.reject(PlatformError.fromUnknown(abort.reason));
    const id = nextId++;
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    const forget = (error: PlatformError): void => {
      waiters.delete(id);
      reject(error);
    };
    const onAbort = (): void => forget(PlatformError.fromUnknown(abort?.reason));
    const timer = clock.timer(options.deadlineMs ?? DEFAULT_DEADLINE_MS, () => {
      forget(new PlatformError('deadline_exceeded', `the engine did not answer ${command}`));
    });
    abort?.addEventListener('abort', onAbort, { once: true });
    waiters.set(id, { resolve, reject });
    socket.write(`${JSON.stringify({ execute: command, arguments: args, id })}\n`);
    return promise.finally(() => {
      timer[Symbol.dispose]();
      abort?.removeEventListener('abort', onAbort);
    });
  }

  const greetingTimer = clock.timer(DEFAULT_DEADLINE_MS, () => {
    greeting.reject(new PlatformError('deadline_exceeded', 'the engine sent no greeting; another client may hold it'));
  });
  const onAbort = (): void => greeting.reject(PlatformError.fromUnknown(signal?.reason));
  signal?.addEventListener('abort', onAbort, { once: true });
  try {
    signal?.throwIfAborted();
    const version = await greeting.promise;
    await execute('qmp_capabilities', {}, {}, signal);
    return {
      version,
      closed: closed.promise,
      execute,
      subscribe(listener) {
        listeners.add(listener);
        return {
          [Symbol.dispose]() {
            listeners.delete(listener);
          },
        };
      },
      async [Symbol.asyncDispose]() {
        close();
      },
    };
  } catch (caught) {
    close();
    throw PlatformError.fromUnknown(caught, 'the engine could not be controlled');
  } finally {
    greetingTimer[Symbol.dispose]();
    signal?.removeEventListener('abort', onAbort);
  }
}

/** Resolves with the first event that `pick` maps to a value; rejects when the engine is gone, at the deadline, or aborted. */
export function nextQmpEvent<T>(
  qmp: Qmp,
  clock: Clock,
  pick: (event: QmpEvent) => T | undefined,
  deadlineMs: number,
  signal?: AbortSignal,
): Promise<T> {
  const { promise, resolve, reject } = Promise.withResolvers<T>();
  const subscription = qmp.subscribe((event) => {
    const picked = pick(event);
    if (picked !== undefined) resolve(picked);
  });
  const timer = clock.timer(deadlineMs, () => {
    reject(new PlatformError('deadline_exceeded', 'the engine did not report in time'));
  });
  const onAbort = (): void => reject(PlatformError.fromUnknown(signal?.reason));
  if (signal?.aborted) onAbort();
  signal?.addEventListener('abort', onAbort, { once: true });
  void qmp.closed.then(() => reject(gone()));
  return promise.finally(() => {
    subscription[Symbol.dispose]();
    timer[Symbol.dispose]();
    signal?.removeEventListener('abort', onAbort);
  });
}
