import { spawn } from 'node:child_process';
import { readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Clock, PlatformError } from '@agentenv/core';
import { isFields } from './qmp-events.ts';

/** The refined rate takes about a second of guest time after the boot; on a loaded host several seconds of ours. */
const REFINED_DEADLINE_MS = 20_000;
const MAX_CONSOLE = 65_536;
const CACHE_FILE = 'tsc.json';

export interface TscRate {
  readonly khz: number;
  /** The kernel measured it over a second against the HPET, not over a few milliseconds. */
  readonly refined: boolean;
}

/** The best rate a kernel has reported so far on its console; undefined before the first. */
export function tscRateFrom(consoleText: string): TscRate | undefined {
  const refined = /tsc: Refined TSC clocksource calibration: (\d+)\.(\d{3}) MHz/.exec(consoleText);
  const match = refined ?? /tsc: Detected (\d+)\.(\d{3}) MHz/.exec(consoleText);
  if (match === null) return undefined;
  return { khz: Number(match[1]) * 1000 + Number(match[2]), refined: refined !== null };
}

/**
 * Boots the kernel once on a machine that has an HPET and reads how fast the time stamp counter runs, which an emulated
 * guest shares with the host. The host's own figures are no source: `/proc/cpuinfo` shows the current frequency of a core.
 * Takes some seconds; rejects with `create_failed` when the kernel reports no rate.
 */
export async function measureTscKhz(options: {
  readonly enginePath: string;
  readonly kernelPath: string;
  readonly clock: Clock;
  readonly signal?: AbortSignal;
}): Promise<number> {
  options.signal?.throwIfAborted();
  const engine = spawn(
    options.enginePath,
    [
      ...['-nodefaults', '-no-user-config', '-no-reboot', '-display', 'none', '-machine', 'q35'],
      ...['-accel', 'tcg', '-cpu', 'max', '-m', '128', '-kernel', options.kernelPath, '-serial', 'stdio'],
      // No such device ever appears: the kernel waits for its root until the rate is known and we end it.
      ...['-append', 'console=ttyS0 cryptomgr.notests root=/dev/vda rootwait'],
      ...['-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny'],
    ],
    { stdio: ['ignore', 'pipe', 'pipe'] },
  );
  const finished = Promise.withResolvers<void>();
  let text = '';
  let complaints = '';
  engine.stdout.on('data', (chunk: Buffer) => {
    text = (text + chunk.toString('latin1')).slice(-MAX_CONSOLE);
    if (tscRateFrom(text)?.refined) finished.resolve();
  });
  engine.stderr.on('data', (chunk: Buffer) => {
    complaints = (complaints + chunk.toString()).slice(-1_000);
  });
  const exited = new Promise<void>((resolve) => {
    engine.once('exit', () => resolve());
    engine.once('error', (error) => {
      complaints = error.message;
      resolve();
    });
  });
  const onAbort = (): void => finished.reject(PlatformError.fromUnknown(options.signal?.reason));
  options.signal?.addEventListener('abort', onAbort, { once: true });
  const timer = options.clock.timer(REFINED_DEADLINE_MS, finished.resolve);
  try {
    await Promise.race([finished.promise, exited]);
  } finally {
    timer[Symbol.dispose]();
    options.signal?.removeEventListener('abort', onAbort);
    engine.kill('SIGKILL');
    await exited;
  }
  const rate = tscRateFrom(text);
  if (rate === undefined) {
    throw new PlatformError('create_failed', 'the rate of the time stamp counter could not be measured', {
      details: { engine: complaints.trim() },
    });
  }
  return rate.khz;
}

/**
 * The measured rate of this CPU model, from `home` or measured now and kept there. It is part of every snapshot's
 * fingerprint, so it is measured once and not with every start, whose results differ by some kHz.
 */
export async function cachedTscKhz(home: string, cpuModel: string, measure: () => Promise<number>): Promise<number> {
  const path = join(home, CACHE_FILE);
  try {
    const cached: unknown = JSON.parse(await readFile(path, 'utf8'));
    if (isFields(cached) && cached.cpuModel === cpuModel && typeof cached.khz === 'number') return cached.khz;
  } catch {
    // Missing or unreadable is the same: it is measured again and written anew.
  }
  const khz = await measure();
  await writeFile(`${path}.new`, `${JSON.stringify({ cpuModel, khz })}\n`);
  await rename(`${path}.new`, path);
  return khz;
}

/** The CPU model as the kernel names it. */
export async function readCpuModel(): Promise<string> {
  const text = await readFile('/proc/cpuinfo', 'utf8');
  return /^model name\s*:\s*(.+)$/m.exec(text)?.[1]?.trim() ?? 'unknown';
}
