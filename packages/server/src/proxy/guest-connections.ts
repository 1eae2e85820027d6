import type { Duplex } from 'node:stream';
import type { Agent } from '@agentenv/agent';
import { type Clock, callWithin, type Log, PlatformError } from '@agentenv/core';
import { delay } from '../delay.ts';
import type { SocketGroup } from '../orchestrator/orchestrator.ts';
import type { DataPlaneProblem } from './answers.ts';

/** One generation of a sandbox, as far as connections into it go. */
export interface ConnectTarget {
  readonly agent: Pick<Agent, 'connectPort'>;
  /** What belongs to the generation; no connection outlives it. */
  readonly sockets: SocketGroup;
}

export interface GuestConnectionsOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** Connections from outside one generation may have at once. */
  readonly maxConnections: number;
}

/** A connection to a port inside a sandbox, for one request. */
export interface GuestConnection {
  readonly kind: 'connected';
  readonly stream: Duplex;
  /**
   * Ends our side, gives the service a moment to end its own, and takes the connection away. It does not count any more
   * from here on.
   */
  leave(): void;
}

export type ConnectOutcome =
  | GuestConnection
  | Extract<DataPlaneProblem, { kind: 'not-found' | 'port-closed' | 'too-many-connections' }>;

/**
 * Makes a connection to a port inside a sandbox; throws the reason of `signal`. Every request has its own, so none is
 * ever used again by another request, much less by one for another generation.
 */
export type OpenGuestConnection = (target: ConnectTarget, port: number, signal: AbortSignal) => Promise<ConnectOutcome>;

/** A server that was only just started refuses at first (contract e2b.md section 7), milliseconds between attempts. */
const RETRY_PAUSES_MS = [100, 200, 300, 400];
/** All attempts together, milliseconds (agentenv.md section 15.3). */
const CONNECT_TIMEOUT_MS = 5_000;
/** How long a service may take to end its side after its answer, milliseconds. */
const LINGER_MS = 1_000;

export function createGuestConnections({ clock, log, maxConnections }: GuestConnectionsOptions): OpenGuestConnection {
  const counts = new WeakMap<SocketGroup, number>();
  const change = (group: SocketGroup, by: 1 | -1): void => {
    counts.set(group, (counts.get(group) ?? 0) + by);
  };

  async function attempt(target: ConnectTarget, port: number, signal: AbortSignal): Promise<Duplex> {
    for (let attempts = 0; ; attempts++) {
      try {
        const connection = await target.agent.connectPort(port, signal);
        // Nobody waits for one that came too late.
        if (signal.aborted) connection.destroy();
        return connection;
      } catch (error) {
        const pause = RETRY_PAUSES_MS[attempts];
        if (!isRefused(error) || pause === undefined) throw error;
        await delay(clock, pause, signal);
      }
    }
  }

  return async (target, port, signal) => {
    const { sockets } = target;
    if ((counts.get(sockets) ?? 0) >= maxConnections) return { kind: 'too-many-connections' };
    change(sockets, 1);
    let connection: Duplex;
    try {
      const bounds = { what: `port ${port}`, timeoutMs: CONNECT_TIMEOUT_MS, graceMs: 0, signal };
      connection = await callWithin(clock, bounds, (aborted) => attempt(target, port, aborted));
    } catch (error) {
      change(sockets, -1);
      if (signal.aborted) throw error;
      return problemOf(error, port, log);
    }
    return occupy(connection, () => change(sockets, -1));
  };

  function occupy(stream: Duplex, release: () => void): GuestConnection {
    stream.once('close', release);
    return {
      kind: 'connected',
      stream,
      leave() {
        if (stream.destroyed) return;
        stream.off('close', release);
        release();
        const timer = clock.timer(LINGER_MS, () => stream.destroy());
        stream.once('close', () => timer[Symbol.dispose]());
        stream.end();
        stream.resume();
      },
    };
  }
}

/** Opens a connection; undefined, with nothing left behind, when its client left meanwhile. */
export async function openFor(
  client: { once(event: 'close', listener: () => void): unknown; off(event: 'close', listener: () => void): unknown },
  open: (signal: AbortSignal) => Promise<ConnectOutcome>,
): Promise<ConnectOutcome | undefined> {
  const gone = new AbortController();
  const leave = (): void => gone.abort();
  client.once('close', leave);
  try {
    const outcome = await open(gone.signal);
    if (!gone.signal.aborted) return outcome;
    if (outcome.kind === 'connected') outcome.stream.destroy();
    return undefined;
  } catch (error) {
    if (gone.signal.aborted) return undefined;
    throw error;
  } finally {
    client.off('close', leave);
  }
}

function isRefused(error: unknown): boolean {
  return error instanceof PlatformError && error.details.status === 'REFUSED';
}

function problemOf(error: unknown, port: number, log: Log): Exclude<ConnectOutcome, { kind: 'connected' }> {
  const { code } = PlatformError.fromUnknown(error);
  if (code === 'capacity') return { kind: 'too-many-connections' };
  // The generation ended while we asked; its state follows.
  if (code === 'sandbox_unavailable') return { kind: 'not-found' };
  if (!isRefused(error) && code !== 'deadline_exceeded') log.warn({ port, err: error }, 'a port could not be reached');
  return { kind: 'port-closed', port };
}
