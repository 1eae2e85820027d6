import { type ChildProcess, spawn } from 'node:child_process';
import { readFile, rm } from 'node:fs/promises';
import { type Clock, type Log, PlatformError } from '@agentenv/core';

/** How the gateway reaches the outside. */
export interface Uplink extends AsyncDisposable {
  /**
   * Carries traffic from now on, with these settings. Resolves when it is up, or after its deadline when it is not (the
   * reason is logged).
   */
  run(settings: UplinkSettings): Promise<void>;
}

export interface UplinkSettings {
  /** The resolver on the host itself, undefined when another one is used. A change starts the uplink anew. */
  readonly localResolver: string | undefined;
}

/** Address in the gateway that stands for a resolver on the host itself, over UDP; nothing else uses it. */
export const LOCAL_RESOLVER = '169.254.53.53';

export interface PastaOptions {
  readonly gatewayPath: string;
  readonly pidFile: string;
  readonly clock: Clock;
  readonly log: Log;
  /** Put in front of the command, to run it in another namespace. */
  readonly wrapper?: readonly string[];
}

/** Its interface in the gateway. */
export const PASTA_LINK = 'uplink0';

const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 30_000;
/** A run this long makes the next failure a first one again. */
const STABLE_MS = 60_000;
const READY_DEADLINE_MS = 5_000;
const READY_POLL_MS = 20;
const LAST_WORDS = 600;

/**
 * `pasta` as the gateway's uplink: it copies the host's address and routes into the gateway and carries connections in
 * user space, so the root namespace needs neither forwarding nor rules. Nothing is forwarded inwards, and neither the
 * host's loopback nor its gateway address is mapped. A pasta that ends is started again with growing pauses.
 */
export function createPastaUplink({ gatewayPath, pidFile, clock, log, wrapper = [] }: PastaOptions): Uplink {
  let child: ChildProcess | undefined;
  let settings: UplinkSettings | undefined;
  let retry: Disposable | undefined;
  let backoff = FIRST_BACKOFF_MS;
  let disposed = false;

  function start(current: UplinkSettings): void {
    const [program = 'pasta', ...args] = [...wrapper, 'pasta', ...pastaArguments(gatewayPath, pidFile, current)];
    const startedAt = clock.monotonic();
    const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' };
    const started = spawn(program, args, { env, stdio: ['ignore', 'ignore', 'pipe'], detached: true });
    let words = '';
    started.stderr.setEncoding('utf8').on('data', (text: string) => {
      words = (words + text).slice(-LAST_WORDS);
    });
    const onEnd = (reason: string): void => {
      // Ended on purpose, or reported already.
      if (disposed || child !== started) return;
      child = undefined;
      if (clock.monotonic() - startedAt >= STABLE_MS) backoff = FIRST_BACKOFF_MS;
      log.warn({ reason, words: words.trim(), retryInMs: backoff }, 'the uplink ended, sandboxes have no internet');
      retry = clock.timer(backoff, () => start(settings ?? current));
      backoff = Math.min(MAX_BACKOFF_MS, backoff * 2);
    };
    started.on('error', (error) => onEnd(error.message));
    started.on('exit', (code, signal) => onEnd(`exit ${signal ?? code}`));
    child = started;
  }

  async function stop(): Promise<void> {
    retry?.[Symbol.dispose]();
    const stopping = child;
    child = undefined;
    if (stopping?.pid !== undefined && stopping.exitCode === null && stopping.signalCode === null) {
      const gone = new Promise((resolve) => stopping.once('exit', resolve));
      stopping.kill('SIGKILL');
      await gone;
    }
    await rm(pidFile, { force: true });
  }

  async function waitUntilReady(): Promise<void> {
    const deadline = clock.monotonic() + READY_DEADLINE_MS;
    while (!disposed && (await readPid(pidFile)) === undefined) {
      if (clock.monotonic() >= deadline) {
        log.warn({ deadlineMs: READY_DEADLINE_MS }, 'the uplink is not ready, sandboxes start without internet');
        return;
      }
      await new Promise<void>((resolve) => {
        clock.timer(READY_POLL_MS, resolve);
      });
    }
  }

  return {
    async run(wanted) {
      if (disposed || (settings !== undefined && settings.localResolver === wanted.localResolver)) return;
      await stop();
      settings = wanted;
      backoff = FIRST_BACKOFF_MS;
      start(wanted);
      await waitUntilReady();
    },
    async [Symbol.asyncDispose]() {
      disposed = true;
      await stop();
    },
  };
}

/**
 * No mapping of the host, no ports inwards or outwards, nothing announced: addresses are set directly. It stays root,
 * because the gateway is the initial user namespace's; it keeps two capabilities, a system call filter and an empty root.
 */
export function pastaArguments(
  gatewayPath: string,
  pidFile: string,
  { localResolver }: UplinkSettings,
): readonly string[] {
  return [
    ...['--runas', '0'],
    '--foreground',
    '--quiet',
    '--config-net',
    '--no-map-gw',
    '--no-dhcp',
    '--no-dhcpv6',
    '--no-ra',
    ...['--tcp-ports', 'none', '--udp-ports', 'none', '--tcp-ns', 'none', '--udp-ns', 'none'],
    ...['--mtu', '1500'],
    // Only then: with it, answers of the host's resolver to anybody else come back under the wrong address.
    ...(localResolver === undefined ? [] : ['--dns-forward', LOCAL_RESOLVER]),
    ...['--ns-ifname', PASTA_LINK],
    ...['--pid', pidFile],
    '--netns-only',
    ...['--netns', gatewayPath],
  ];
}

/** An uplink somebody else provides, by putting an interface with a default route into the gateway. */
export function createNoUplink(): Uplink {
  return { async run() {}, async [Symbol.asyncDispose]() {} };
}

/** Ends a pasta that a dead server left behind; only a process that really is one, on that namespace. */
export async function endLeftoverPasta(pidFile: string, gatewayPath: string): Promise<void> {
  const pid = await readPid(pidFile);
  await rm(pidFile, { force: true });
  if (pid === undefined) return;
  try {
    const commandLine = await readFile(`/proc/${pid}/cmdline`, 'utf8');
    if (!commandLine.split('\0').includes(gatewayPath)) return;
    process.kill(pid, 'SIGKILL');
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined;
    // It ended by itself, as it does when its namespace goes away.
    if (code === 'ENOENT' || code === 'ESRCH') return;
    throw PlatformError.fromUnknown(error, 'a leftover uplink could not be ended');
  }
}

async function readPid(pidFile: string): Promise<number | undefined> {
  const text = await readFile(pidFile, 'utf8').catch(() => '');
  const pid = Number.parseInt(text, 10);
  return pid > 1 ? pid : undefined;
}
