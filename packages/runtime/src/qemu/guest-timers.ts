import type { Agent } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';
import type { Accelerator } from './qemu-args.ts';

/** Text of some hundred timers; read no further. */
const MAX_TIMER_LIST = 1 << 20;
const TIMER_LIST = '/proc/timer_list';
/** The engine's emulated timer counts 62.5 MHz; the kernel's figure is that many in a nanosecond, in units of 2^-32. */
const EMULATED_RATE = 0.0625 * 2 ** 32;
/** A timer thought to be slower than it is fires early and is set again; one thought to be faster is late for good. */
const RATES = { from: 0.75, to: 1.1 };

/** What became of the timers of a booted kernel: `dead`: whatever sleeps there never wakes up. */
export type GuestTimers = 'good' | 'imprecise' | 'dead';

/**
 * Judges `/proc/timer_list`. An emulated guest finds out the rate of its processor's timer by comparing it with the time
 * stamp counter for a tenth of a second. Where the host does not let it run at the wrong moment the rate is wrong, and
 * where it seems impossible the kernel goes on without any timer.
 */
export function judgeTimers(timerList: string, accelerator: Pick<Accelerator, 'kind'>): GuestTimers {
  const processors = timerList.split(/^Per CPU device: /m).slice(1);
  const devices = processors.map((text) => /^Clock Event Device: (\S+)/m.exec(text)?.[1]);
  if (devices.length === 0 || devices.some((device) => device === undefined || device === '<NULL>')) return 'dead';
  if (accelerator.kind === 'kvm') return 'good';
  const rates = processors.map((text) => Number(/^ mult:\s+(\d+)/m.exec(text)?.[1]) / EMULATED_RATE);
  return rates.every((rate) => rate >= RATES.from && rate <= RATES.to) ? 'good' : 'imprecise';
}

/** How often a guest is booted until its timers are right: without any it is of no use, with slow ones it is. */
const BOOT_ATTEMPTS = { dead: 5, imprecise: 2 };

export interface BootSoFar {
  /** From 1 on. */
  readonly attempt: number;
  readonly tookMs: number;
  /** A boot that took longer is not repeated for better timers: whoever waits for it would give up. */
  readonly longestMs: number;
}

/** Whether a guest with those timers is to be booted again. */
export function deservesAnotherBoot(timers: Exclude<GuestTimers, 'good'>, boot: BootSoFar): boolean {
  const { attempt, tookMs, longestMs } = boot;
  return attempt < BOOT_ATTEMPTS[timers] && (timers === 'dead' || tookMs <= longestMs);
}

/** The timers of a guest that has just booted. */
export async function guestTimers(
  agent: Agent,
  accelerator: Pick<Accelerator, 'kind'>,
  signal?: AbortSignal,
): Promise<GuestTimers> {
  const { body } = await agent.readFile(TIMER_LIST, undefined, signal);
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of body) {
    pieces.push(Uint8Array.from(piece));
    bytes += piece.length;
    if (bytes > MAX_TIMER_LIST) throw new PlatformError('create_failed', "the guest's list of timers has no end");
  }
  return judgeTimers(Buffer.concat(pieces).toString('latin1'), accelerator);
}
