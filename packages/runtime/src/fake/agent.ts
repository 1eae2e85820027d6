import type { Agent, ChannelClosed, GuestEntry, GuestMetrics, SpawnRequest } from '@agentenv/agent';
import { PlatformError } from '@agentenv/core';
import type { FakeGuest } from './guest.ts';
import { programOf } from './guest-commands.ts';
import { guestError } from './guest-error.ts';
import { lookupUser, nameOf } from './guest-users.ts';

const READ_CHUNK = 32 * 1024;
const DEFAULT_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** The host side of a fake guest's channel: the whole agent interface without a wire. */
export function createFakeAgent(guest: FakeGuest): Agent {
  const closedByUs = Promise.withResolvers<ChannelClosed>();
  let disposed = false;

  /** Every call waits for the guest to run and fails once the channel is closed. */
  async function call<Result>(signal: AbortSignal | undefined, work: () => Result | Promise<Result>): Promise<Result> {
    try {
      if (disposed) throw new PlatformError('sandbox_unavailable', 'the agent channel is closed');
      await guest.running(signal);
      return await work();
    } catch (error) {
      throw PlatformError.fromUnknown(error);
    }
  }

  function entry(path: string): GuestEntry {
    return guest.files.entry(path, (kind, id) => nameOf(guest.files, kind, id));
  }

  function spawn(request: SpawnRequest) {
    const user = lookupUser(guest.files, request.user);
    const { home } = user;
    const fallback = request.defaultCwd !== '' && guest.files.has(request.defaultCwd) ? request.defaultCwd : home;
    const cwd = request.cwd === '' ? fallback : request.cwd.startsWith('/') ? request.cwd : `${home}/${request.cwd}`;
    if (!guest.files.has(cwd)) throw guestError('BAD_CWD', cwd);
    const env = { PATH: DEFAULT_PATH, HOME: home, USER: user.name, LOGNAME: user.name, ...request.env };
    const program = programOf(request.argv, {
      env,
      cwd,
      user: user.name,
      hostname: guest.hostname,
      readText: (path) => (guest.files.has(path) ? guest.files.text(path) : undefined),
    });
    if (program === undefined) throw guestError('EXEC_FAILED', request.argv[0] ?? '');
    return guest.spawn({
      uid: user.uid,
      tag: request.tag,
      config: request.config,
      pty: request.pty !== undefined,
      stdinOpen: request.stdin || request.pty !== undefined,
      program,
      killInMs: request.killAfterMs === 0 ? undefined : request.killAfterMs,
    });
  }

  function metrics(): GuestMetrics {
    let bytes = 0;
    for (const node of guest.files.nodes().values()) bytes += node.content.byteLength;
    const memUsed = 32 * 1024 * 1024 + guest.processes.length * 1024 * 1024;
    return {
      cpuCount: 1,
      cpuUsedPct: 0,
      memTotal: 1024 * 1024 * 1024,
      memUsed,
      memCache: 0,
      diskTotal: 10 * 1024 * 1024 * 1024,
      diskUsed: bytes,
      agentRss: 128 * 1024,
    };
  }

  return {
    closed: Promise.race([guest.closed, closedByUs.promise]),
    ping: (signal) => call(signal, () => ({ monotonicNs: BigInt(Math.trunc(guest.clock.monotonic() * 1e6)) })),
    activate: (activation, signal) => call(signal, () => guest.activate(activation)),
    quiesce: (leaseMs, signal) => call(signal, () => ({ processes: guest.quiesce(leaseMs), frozenMs: 0 })),
    // What is written to a fake disk is on it.
    settle: (leaseMs, signal) => call(signal, () => ({ processes: guest.quiesce(leaseMs), frozenMs: 0 })),
    clockSkew: (signal) => call(signal, () => guest.skewMs),
    setClock: (signal) =>
      call(signal, () => {
        const before = guest.skewMs;
        guest.skewMs = 0;
        return before;
      }),
    metrics: (signal) => call(signal, metrics),
    spawn: (request, signal) => call(signal, () => spawn(request)),
    listProcesses: (signal) => call(signal, () => guest.processes),
    lookupUser: (user, signal) => call(signal, () => lookupUser(guest.files, user)),
    stat: (path, signal) => call(signal, () => entry(path)),
    listDir: (path, { depth, max, after }, signal) =>
      call(signal, () => {
        const paths = guest.files.below(path, depth);
        const skipped = after === undefined ? 0 : Buffer.from(after).readUInt32LE();
        const page = max === 0 ? paths.slice(skipped) : paths.slice(skipped, skipped + max);
        const next = Buffer.alloc(4);
        next.writeUInt32LE(skipped + page.length);
        return { entries: page.map(entry), next: paths.length > skipped + page.length ? next : undefined };
      }),
    makeDir: (path, owner, signal) => call(signal, () => guest.files.makeDir(path, owner)),
    rename: (source, destination, owner, signal) => call(signal, () => guest.files.rename(source, destination, owner)),
    remove: (path, signal) => call(signal, () => guest.files.remove(path)),
    readFile: (path, range, signal) =>
      call(signal, () => {
        const content = guest.files.content(path);
        const start = Number(range?.offset ?? 0n);
        const end =
          range === undefined ? content.byteLength : Math.min(content.byteLength, start + Number(range.length));
        return { entry: entry(path), body: chunks(content.subarray(start, end), guest, signal) };
      }),
    writeFile: (request, body, signal) =>
      call(signal, async () => {
        const content = await collect(body, signal);
        await guest.running(signal);
        guest.files.write({ ...request, content });
        return { size: BigInt(content.byteLength) };
      }),
    composeFile: (sources, request, signal) =>
      call(signal, () => {
        const content = Buffer.concat(sources.map((source) => guest.files.content(source)));
        guest.files.write({ ...request, content, xattrs: new Map() });
        for (const source of sources) guest.files.remove(source);
        return { size: BigInt(content.byteLength) };
      }),
    watch: (path, { recursive }, onEvent, signal) =>
      call(signal, () => asyncDisposable(guest.files.watch(path, recursive, onEvent))),
    connectPort: (port, signal) => call(signal, () => guest.connect(port)),
    listenPort: (port, onConnection, signal) => call(signal, () => asyncDisposable(guest.forward(port, onConnection))),
    source: (bytes, frame, onData, signal) =>
      call(signal, async () => {
        for (let left = bytes; left > 0n; left -= BigInt(frame)) {
          await guest.running(signal);
          onData(new Uint8Array(left < BigInt(frame) ? Number(left) : frame));
        }
      }),
    sink: (body, signal) =>
      call(signal, async () => {
        let total = 0n;
        for await (const data of body) {
          await guest.running(signal);
          total += BigInt(data.byteLength);
        }
        return total;
      }),
    async [Symbol.asyncDispose]() {
      disposed = true;
      closedByUs.resolve({ kind: 'closed', reason: 'closed by the host' });
    },
  };
}

function asyncDisposable(inner: Disposable): AsyncDisposable {
  return {
    async [Symbol.asyncDispose]() {
      inner[Symbol.dispose]();
    },
  };
}

async function* chunks(content: Uint8Array, guest: FakeGuest, signal?: AbortSignal): AsyncGenerator<Uint8Array> {
  for (let offset = 0; offset < content.byteLength; offset += READ_CHUNK) {
    await guest.running(signal);
    yield content.subarray(offset, offset + READ_CHUNK);
  }
}

async function collect(body: AsyncIterable<Uint8Array>, signal?: AbortSignal): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  for await (const piece of body) {
    signal?.throwIfAborted();
    pieces.push(Uint8Array.from(piece));
  }
  return Buffer.concat(pieces);
}
