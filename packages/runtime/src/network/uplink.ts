import { spawn } from 'node:child_process';
import { readFile, rm } from 'node:fs/promises';
import type { Clock, Log } from '@agentenv/core';
import { endProcess, findProcesses, isRunning, type ProcessIdentity } from '../processes.ts';

/** How the gateway reaches the outside. */
export interface Uplink extends AsyncDisposable {
  /**
   * Carries traffic from now on, with these settings. Resolves when it is up, or after its deadline when it is not (the
   * reason is logged).
   */
  run(settings: UplinkSettings): Promise<void>;
  /** Ends and lets the traffic flow on. */
  abandon(): void;
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
const KILL_DEADLINE_MS = 10_000;
/** A process that is not our child is looked at this often. */
const ADOPTED_POLL_MS = 1_000;
const LAST_WORDS = 600;

/** A pasta that carries the traffic. */
interface Carrier {
  /** Resolves when it has ended, with how and its last words. */
  readonly ended: Promise<{ readonly reason: string; readonly words: string }>;
  stop(): Promise<void>;
}

function spawnCarrier(program: string, args: readonly string[]): Carrier {
  const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' };
  const child = spawn(program, args, { env, stdio: ['ignore', 'ignore', 'pipe'], detached: true });
  let words = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    words = (words + text).slice(-LAST_WORDS);
  });
  const ended = new Promise<string>((resolve) => {
    child.on('error', (error) => resolve(error.message));
    child.on('exit', (code, signal) => resolve(`exit ${signal ?? code}`));
  });
  return {
    ended: ended.then((reason) => ({ reason, words: words.trim() })),
    async stop() {
      if (child.pid === undefined) return;
      child.kill('SIGKILL');
      await ended;
    },
  };
}

function adoptCarrier(identity: ProcessIdentity, clock: Clock): Carrier & Disposable {
  const ended = Promise.withResolvers<{ reason: string; words: string }>();
  let timer: Disposable | undefined;
  let watched = true;
  async function look(): Promise<void> {
    if (!(await isRunning(identity))) ended.resolve({ reason: 'gone', words: '' });
    else if (watched) timer = clock.timer(ADOPTED_POLL_MS, () => void look());
  }
  function unwatch(): void {
    watched = false;
    timer?.[Symbol.dispose]();
  }
  void look();
  return {
    ended: ended.promise,
    async stop() {
      unwatch();
      await endProcess(identity, clock, KILL_DEADLINE_MS);
    },
    [Symbol.dispose]: unwatch,
  };
}

/** A pasta that a former server started, with its arguments. */
interface Leftover {
  readonly identity: ProcessIdentity;
  readonly args: readonly string[];
}

/** Found by its arguments: a server may have died before there was a pid file. */
async function findLeftovers(pidFile: string, gatewayPath: string): Promise<readonly Leftover[]> {
  const candidates = await findProcesses((argument) => argument === gatewayPath);
  const leftovers = candidates.map(async ({ pid, startTime }): Promise<Leftover> => {
    const commandLine = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    return { identity: { pid, startTime }, args: commandLine.split('\0').slice(1, -1) };
  });
  return (await Promise.all(leftovers)).filter(({ args }) => args.includes(pidFile));
}

/**
 * `pasta` as the gateway's uplink: it copies the host's address and routes into the gateway and carries connections in
 * user space, so the root namespace needs neither forwarding nor rules. Nothing is forwarded inwards, and neither the
 * host's loopback nor its gateway address is mapped. A pasta that ends is started again with growing pauses; one of a
 * former server with the same settings carries on, and with it the connections it holds.
 */
export function createPastaUplink({ gatewayPath, pidFile, clock, log, wrapper = [] }: PastaOptions): Uplink {
  let carrier: (Carrier & Partial<Disposable>) | undefined;
  let settings: UplinkSettings | undefined;
  let retry: Disposable | undefined;
  let backoff = FIRST_BACKOFF_MS;
  let disposed = false;

  function carry(current: Carrier & Partial<Disposable>): void {
    const startedAt = clock.monotonic();
    carrier = current;
    void current.ended.then(({ reason, words }) => {
      // Ended on purpose.
      if (disposed || carrier !== current) return;
      carrier = undefined;
      if (clock.monotonic() - startedAt >= STABLE_MS) backoff = FIRST_BACKOFF_MS;
      log.warn({ reason, words, retryInMs: backoff }, 'the uplink ended, sandboxes have no internet');
      retry = clock.timer(backoff, start);
      backoff = Math.min(MAX_BACKOFF_MS, backoff * 2);
    });
  }

  function start(): void {
    if (settings === undefined) return;
    const [program = 'pasta', ...args] = [...wrapper, 'pasta', ...pastaArguments(gatewayPath, pidFile, settings)];
    carry(spawnCarrier(program, args));
  }

  async function stop(): Promise<void> {
    retry?.[Symbol.dispose]();
    const stopping = carrier;
    carrier = undefined;
    await stopping?.stop();
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

  /** True when there is one that carries on. */
  async function adopt(wanted: UplinkSettings): Promise<boolean> {
    const args = pastaArguments(gatewayPath, pidFile, wanted).join('\0');
    const leftovers = await findLeftovers(pidFile, gatewayPath);
    const identity = leftovers.find((leftover) => leftover.args.join('\0') === args)?.identity;
    if (identity !== undefined) carry(adoptCarrier(identity, clock));
    else await endLeftoverPasta(pidFile, gatewayPath, clock);
    return identity !== undefined;
  }

  return {
    async run(wanted) {
      if (disposed || (settings !== undefined && settings.localResolver === wanted.localResolver)) return;
      const first = settings === undefined;
      settings = wanted;
      if (first && (await adopt(wanted))) return;
      await stop();
      backoff = FIRST_BACKOFF_MS;
      start();
      await waitUntilReady();
    },
    abandon() {
      disposed = true;
      retry?.[Symbol.dispose]();
      carrier?.[Symbol.dispose]?.();
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
  return { async run() {}, abandon() {}, async [Symbol.asyncDispose]() {} };
}

/** Ends every pasta that a dead server left on that namespace; another one can take its place then. */
export async function endLeftoverPasta(pidFile: string, gatewayPath: string, clock: Clock): Promise<void> {
  for (const { identity } of await findLeftovers(pidFile, gatewayPath)) {
    await endProcess(identity, clock, KILL_DEADLINE_MS);
  }
  await rm(pidFile, { force: true });
}

async function readPid(pidFile: string): Promise<number | undefined> {
  const text = await readFile(pidFile, 'utf8').catch(() => '');
  const pid = Number.parseInt(text, 10);
  return pid > 1 ? pid : undefined;
}
