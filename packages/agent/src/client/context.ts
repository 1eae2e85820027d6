import type { Clock, Log, Rng } from '@agentenv/core';
import type { Calls } from '../channel/calls.ts';
import type { Channel } from '../channel/channel.ts';

/** What every part of the client is made of. */
export interface ClientContext {
  readonly channel: Channel;
  readonly calls: Calls;
  readonly clock: Clock;
  readonly rng: Rng;
  readonly log: Log;
}

/**
 * Calls a callback of our user; what it throws is logged, as the guest's frames behind it must still be handled.
 * Returns false when it threw.
 */
export function notify(log: Log, what: string, callback: () => void): boolean {
  try {
    callback();
    return true;
  } catch (caught) {
    log.error({ err: caught }, `${what} failed`);
    return false;
  }
}

/** Milliseconds since the epoch, perhaps with a fraction, as whole nanoseconds without losing digits. */
export const nanoseconds = (milliseconds: number): bigint => BigInt(Math.round(milliseconds * 1000)) * 1000n;

/** Nanoseconds as milliseconds. */
export const milliseconds = (nanoseconds: bigint): number => Number(nanoseconds) / 1e6;
