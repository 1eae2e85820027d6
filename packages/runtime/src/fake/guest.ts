import type { Duplex } from 'node:stream';
import { duplexPair } from 'node:stream';
import type { Activation, ChannelClosed } from '@agentenv/agent';
import { type Clock, PlatformError } from '@agentenv/core';
import { Countdown } from './countdown.ts';
import { guestError } from './guest-error.ts';
import { GuestFiles } from './guest-files.ts';
import { FakeProcess, type ProcessImage } from './guest-process.ts';
import { BASE_FILES } from './guest-users.ts';

/** Everything of a guest a capture keeps. */
export interface GuestImage {
  readonly nodes: ReturnType<GuestFiles['nodes']>;
  readonly processes: readonly ProcessImage[];
  readonly hostname: string;
  readonly nextId: number;
  readonly nextPid: number;
}

export interface FakeGuestDeps {
  readonly clock: Clock;
  readonly onPower: (event: 'poweroff' | 'reboot' | 'panic') => void;
}

export interface BootFacts {
  readonly clock: Clock;
  /** Different for every boot. */
  readonly bootId: string;
  /** Behind those it always has. */
  readonly kernelArguments?: string | undefined;
  /** What is on its disk; a freshly made base system unless given. */
  readonly disk?: GuestImage['nodes'];
}

/** File systems in memory: a boot finds them empty. */
const IN_MEMORY = ['/proc', '/run'];

/** The files of a guest that are on its disk. */
export function diskOf(nodes: GuestImage['nodes']): GuestImage['nodes'] {
  const inMemory = (path: string) => IN_MEMORY.some((mount) => path === mount || path.startsWith(`${mount}/`));
  return new Map([...nodes].filter(([path]) => !inMemory(path)));
}

/** A guest that has just booted. */
export function bootImage({ clock, bootId, kernelArguments = '', disk }: BootFacts): GuestImage {
  const files = new GuestFiles(() => clock.now(), disk);
  const owner = { uid: 0, gid: 0, mode: 0o644 };
  const write = (path: string, text: string): void =>
    files.write({ path, ...owner, content: Buffer.from(text), xattrs: new Map() });
  if (disk === undefined) {
    for (const path of ['/bin', '/etc', '/root', '/var']) files.makeDir(path, { ...owner, mode: 0o755 });
    files.makeDir('/home/user', { uid: 1000, gid: 1000, mode: 0o755 });
    for (const [path, text] of Object.entries(BASE_FILES)) write(path, text);
  }
  for (const path of IN_MEMORY) files.makeDir(path, { ...owner, mode: 0o755 });
  files.makeDir('/tmp', { ...owner, mode: 0o1777 });
  write('/proc/cmdline', `${`quiet ${kernelArguments}`.trim()}\n`);
  write('/proc/sys/kernel/random/boot_id', `${bootId}\n`);
  return { nodes: files.nodes(), processes: [], hostname: 'localhost', nextId: 16, nextPid: 100 };
}

/** A machine in memory: files, processes, ports, and a switch that makes all of it stand still. */
export class FakeGuest {
  readonly files: GuestFiles;
  readonly closed: Promise<ChannelClosed>;
  /** Guest wall clock minus host wall clock, milliseconds; tests step it. */
  skewMs = 0;
  readonly #deps: FakeGuestDeps;
  readonly #closed = Promise.withResolvers<ChannelClosed>();
  readonly #processes = new Map<number, FakeProcess>();
  readonly #servers = new Map<number, (connection: Duplex) => void>();
  readonly #forwards = new Map<number, (connection: Duplex) => void>();
  readonly #connections = new Set<Duplex>();
  #hostname: string;
  #nextId: number;
  #nextPid: number;
  #generation: string | undefined;
  #lost: PlatformError | undefined;
  #stopped: PromiseWithResolvers<void> | undefined;
  #lease: Countdown | undefined;

  constructor(image: GuestImage, deps: FakeGuestDeps) {
    this.#deps = deps;
    this.files = new GuestFiles(() => deps.clock.now() + this.skewMs, image.nodes);
    this.closed = this.#closed.promise;
    this.#hostname = image.hostname;
    this.#nextId = image.nextId;
    this.#nextPid = image.nextPid;
    for (const process of image.processes) this.#adopt(new FakeProcess(process, this.#processDeps()));
    this.stop();
  }

  get clock(): Clock {
    return this.#deps.clock;
  }

  get hostname(): string {
    return this.#hostname;
  }

  /** The generation of the last `activate`. */
  get generation(): string | undefined {
    return this.#generation;
  }

  get processes(): readonly FakeProcess[] {
    return [...this.#processes.values()].filter((process) => process.alive);
  }

  /** Resolves while the guest runs, waits while it stands still, rejects when it is gone or `signal` aborts. */
  async running(signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    while (this.#stopped !== undefined && this.#lost === undefined) await abortable(this.#stopped.promise, signal);
    if (this.#lost !== undefined) throw this.#lost;
  }

  get standsStill(): boolean {
    return this.#stopped !== undefined;
  }

  /** Stands still: no process advances, nothing answers. */
  stop(): void {
    if (this.#stopped !== undefined) return;
    this.#stopped = Promise.withResolvers<void>();
    this.#lease?.pause();
    for (const process of this.#processes.values()) process.pause();
  }

  /** Continues after `stop`, and after `quiesce` when `activate` came before. */
  go(): void {
    if (this.#lost !== undefined) return;
    const stopped = this.#stopped;
    this.#stopped = undefined;
    stopped?.resolve();
    if (this.#lease !== undefined) this.#lease.start();
    else for (const process of this.#processes.values()) process.resume();
  }

  /** Freezes the processes; without `activate` they thaw by themselves after `leaseMs`. */
  quiesce(leaseMs: number): number {
    this.#lease?.pause();
    this.#lease = new Countdown(this.clock, leaseMs, () => this.#thaw());
    this.#lease.start();
    for (const process of this.#processes.values()) process.pause();
    return this.processes.length;
  }

  /** Gone for good, by `kind`; every call and process of it fails from now on. */
  lose(kind: ChannelClosed['kind'], reason: string): void {
    if (this.#lost !== undefined) return;
    this.#lost = new PlatformError('sandbox_unavailable', `the sandbox is gone: ${reason}`);
    this.#lease?.pause();
    for (const process of this.#processes.values()) process.lose(this.#lost);
    this.#dropConnections();
    this.files.dropWatchers();
    this.#stopped?.resolve();
    this.#closed.resolve({ kind, reason });
  }

  activate({ generation, hostname, files, resetStreams }: Activation): void {
    this.skewMs = 0;
    for (const { path, mode, content } of files) {
      this.files.write({ path, mode, uid: 0, gid: 0, content: Buffer.from(content), xattrs: new Map() });
    }
    if (hostname !== '') this.#hostname = hostname;
    this.#generation = generation;
    if (resetStreams) {
      this.#dropConnections();
      this.#forwards.clear();
      this.files.dropWatchers();
    }
    this.#thaw();
  }

  spawn(image: Omit<ProcessImage, 'id' | 'pid' | 'remainingMs' | 'pending'>): FakeProcess {
    const id = this.#nextId;
    this.#nextId += 4;
    const remainingMs = image.program.kind === 'sleep' ? image.program.milliseconds : undefined;
    const full: ProcessImage = { ...image, id, pid: this.#nextPid++, remainingMs, pending: [] };
    const process = new FakeProcess(full, this.#processDeps());
    this.#adopt(process);
    process.resume();
    return process;
  }

  image(): GuestImage {
    return {
      nodes: this.files.nodes(),
      processes: this.processes.map((process) => process.image()),
      hostname: this.#hostname,
      nextId: this.#nextId,
      nextPid: this.#nextPid,
    };
  }

  /** A server inside the guest, for tests: answers `connect` to that port. */
  serve(port: number, onConnection: (connection: Duplex) => void): Disposable {
    return register(this.#servers, port, onConnection);
  }

  /** From the host to a server inside. Throws `sandbox_unavailable` when nothing listens. */
  connect(port: number): Duplex {
    return this.#pair(this.#servers, port);
  }

  /** Inside the guest, connections to that port go to the host. */
  forward(port: number, onConnection: (connection: Duplex) => void): Disposable {
    if (this.#forwards.has(port)) throw guestError('EXISTS', `port ${port} is in use`);
    return register(this.#forwards, port, onConnection);
  }

  /** From a program inside the guest to a port the host listens on, for tests. */
  dial(port: number): Duplex {
    return this.#pair(this.#forwards, port);
  }

  #thaw(): void {
    this.#lease?.pause();
    this.#lease = undefined;
    if (this.#stopped === undefined) for (const process of this.#processes.values()) process.resume();
  }

  #pair(listeners: ReadonlyMap<number, (connection: Duplex) => void>, port: number): Duplex {
    const onConnection = listeners.get(port);
    if (onConnection === undefined) {
      throw guestError('REFUSED', `port ${port}`);
    }
    const [near, far] = duplexPair();
    for (const side of [near, far]) {
      this.#connections.add(side);
      side.once('close', () => this.#connections.delete(side));
    }
    onConnection(far);
    return near;
  }

  #dropConnections(): void {
    for (const connection of this.#connections) connection.destroy();
    this.#connections.clear();
  }

  #adopt(process: FakeProcess): void {
    this.#processes.set(process.id, process);
    // A lost channel rejects the exit; the table is dropped with the guest then.
    process.exit.then(
      () => this.#processes.delete(process.id),
      () => {},
    );
  }

  #processDeps() {
    const { clock, onPower } = this.#deps;
    return { clock, onPower, running: () => this.running() };
  }
}

function register<Value>(map: Map<number, Value>, key: number, value: Value): Disposable {
  map.set(key, value);
  return {
    [Symbol.dispose]() {
      if (map.get(key) === value) map.delete(key);
    },
  };
}

async function abortable(promise: Promise<void>, signal: AbortSignal | undefined): Promise<void> {
  if (signal === undefined) return promise;
  const aborted = Promise.withResolvers<void>();
  const onAbort = () => aborted.reject(signal.reason);
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    await Promise.race([promise, aborted.promise]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}
