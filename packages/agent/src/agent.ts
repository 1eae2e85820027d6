import type { Duplex } from 'node:stream';

/** Why a channel ended. */
export interface ChannelClosed {
  /** `closed`: by us · `disconnected`: the peer or its engine is gone · `protocol`: the guest broke the frame format. */
  readonly kind: 'closed' | 'disconnected' | 'protocol';
  readonly reason: string;
}

export interface GuestFile {
  readonly path: string;
  /** Permission bits. */
  readonly mode: number;
  readonly content: string;
}

/** First message of a generation; see `activate` in guest/PROTOCOL.md. */
export interface Activation {
  /** Secret for the next resync, 16 bytes. */
  readonly key: Uint8Array;
  readonly generation: string;
  /** true: a new generation, drop connections and transfers of the former one; false: the same one goes on after a capture. */
  readonly resetStreams: boolean;
  readonly hostname: string;
  /** Written before anything is thawed: `/run/e2b/.E2B_*`, `/etc/hosts`, `/etc/hostname`, `/etc/resolv.conf`. */
  readonly files: readonly GuestFile[];
}

export interface GuestUser {
  readonly uid: number;
  readonly gid: number;
  readonly name: string;
  readonly home: string;
  readonly shell: string;
  readonly groups: readonly number[];
}

/** `unknown`: what a link that leads nowhere names. */
export type EntryType =
  | 'unknown'
  | 'file'
  | 'directory'
  | 'symlink'
  | 'fifo'
  | 'socket'
  | 'character-device'
  | 'block-device';

export interface GuestEntry {
  readonly path: string;
  readonly type: EntryType;
  readonly size: bigint;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly owner: string;
  readonly group: string;
  readonly mtimeNs: bigint;
  /** Set for symlinks: fully resolved absolute target, or the link's own path if unresolvable. */
  readonly link: { readonly target: string; readonly type: EntryType; readonly mode: number } | undefined;
  readonly inode: bigint;
  /** `user.e2b.*`, names without the prefix. */
  readonly xattrs: ReadonlyMap<string, Uint8Array>;
}

export interface SpawnRequest {
  /** Name or decimal uid. */
  readonly user: string;
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string;
  readonly defaultCwd: string;
  readonly pty?: { readonly cols: number; readonly rows: number };
  readonly stdin: boolean;
  readonly tag: string;
  /** Opaque to the agent, returned by `listProcesses`. */
  readonly config: Uint8Array;
  /** Milliseconds after which the guest itself sends SIGKILL; 0 = never. */
  readonly killAfterMs: number;
}

export interface ProcessExit {
  /** Exit code when `signal` is 0. */
  readonly code: number;
  readonly signal: number;
  readonly reason: 'ended' | 'deadline';
  /** Bytes the output streams had produced at the moment of the exit (sent + still in the pipes); for one reaped before this connection only what was sent before it. */
  readonly stdoutTotal: bigint;
  readonly stderrTotal: bigint;
}

export interface ProcessOutput {
  readonly stream: 'stdout' | 'stderr' | 'pty';
  readonly data: Uint8Array;
}

/**
 * A process in the guest. Output is a single-consumer flow: the consumer must call `onOutput` once; credit returns to
 * the guest only for bytes whose handler has settled, so a slow handler slows the process and nobody else.
 */
export interface GuestProcess {
  /** Stream id of the spawn request: the handle for signal and resize, stable over reconnects. */
  readonly id: number;
  readonly pid: number;
  readonly tag: string;
  readonly config: Uint8Array;
  readonly pty: boolean;
  readonly stdinOpen: boolean;
  /** Resolves when the process is reaped; rejects with `sandbox_unavailable` when the channel is lost for good. */
  readonly exit: Promise<ProcessExit>;
  /** Resolves when every output stream reached EOF and its bytes were handed on. */
  readonly outputEnd: Promise<void>;
  /** Bytes of each output stream handed to the consumer so far. */
  received(stream: 'stdout' | 'stderr' | 'pty'): bigint;
  onOutput(consumer: (output: ProcessOutput) => void | Promise<void>): void;
  /** Resolves when the bytes are accepted against stdin credit; `failed_precondition`-like `conflict` when stdin is closed. */
  writeStdin(data: Uint8Array, signal?: AbortSignal): Promise<void>;
  closeStdin(): Promise<void>;
  signal(signal: number): Promise<void>;
  resize(size: { readonly cols: number; readonly rows: number }): Promise<void>;
}

export interface WriteFileRequest {
  readonly path: string;
  readonly uid: number;
  readonly gid: number;
  readonly mode: number;
  readonly xattrs: ReadonlyMap<string, Uint8Array>;
}

export interface ListOptions {
  /** Levels, 1 = the directory's own entries. */
  readonly depth: number;
  /** Entries of the page at most; 0 = as many as fit into a frame. */
  readonly max: number;
  /** `next` of the page before. */
  readonly after?: Uint8Array;
}

export interface ListPage {
  /** At least one unless this is the end. */
  readonly entries: readonly GuestEntry[];
  /** Where the next page begins; opaque. undefined = there is nothing more. */
  readonly next: Uint8Array | undefined;
}

export interface WatchEvent {
  readonly path: string;
  /** inotify mask. */
  readonly mask: number;
  readonly cookie: number;
  readonly isDirectory: boolean;
}

export interface GuestMetrics {
  readonly cpuCount: number;
  /** Percent of all CPUs, 0–100. */
  readonly cpuUsedPct: number;
  readonly memTotal: number;
  readonly memUsed: number;
  readonly memCache: number;
  readonly diskTotal: number;
  readonly diskUsed: number;
  /** Resident bytes of the guest agent itself. */
  readonly agentRss: number;
}

/**
 * The guest as the host sees it. Every call rejects with a PlatformError: the guest's status mapped to a code, or
 * `sandbox_unavailable` when the channel is gone. A call's AbortSignal ends the work in the guest too, up to the moment
 * the call settles (`readFile`: up to the end of the body); what it returned is ended by its own means.
 */
export interface Agent extends AsyncDisposable {
  readonly closed: Promise<ChannelClosed>;
  ping(signal?: AbortSignal): Promise<{ readonly monotonicNs: bigint }>;
  /** When it rejects the agent is closed: what the guest did is unknown, a new connection makes it certain. */
  activate(activation: Activation, signal?: AbortSignal): Promise<void>;
  /** Freezes the user processes and ends all output until `activate`; resolves when it is safe to capture. Until then calls wait here, nothing is sent. */
  quiesce(leaseMs: number, signal?: AbortSignal): Promise<{ readonly processes: number; readonly frozenMs: number }>;
  /** A `quiesce` after which the guest's root file system is on its disk: what its processes wrote survives the loss of its memory. */
  settle(leaseMs: number, signal?: AbortSignal): Promise<{ readonly processes: number; readonly frozenMs: number }>;
  /** Steps the guest's wall clock to the host's; resolves with guest minus host before the step, milliseconds. */
  setClock(signal?: AbortSignal): Promise<number>;
  /** Guest wall clock minus host wall clock in milliseconds, nothing changed. */
  clockSkew(signal?: AbortSignal): Promise<number>;
  metrics(signal?: AbortSignal): Promise<GuestMetrics>;

  spawn(request: SpawnRequest, signal?: AbortSignal): Promise<GuestProcess>;
  /** Processes known to the guest; the same object for the same process while the channel lives. */
  listProcesses(signal?: AbortSignal): Promise<readonly GuestProcess[]>;

  lookupUser(user: string, signal?: AbortSignal): Promise<GuestUser>;
  stat(path: string, signal?: AbortSignal): Promise<GuestEntry>;
  /** One page of a directory's entries, in pre-order, siblings bytewise by name. */
  listDir(path: string, options: ListOptions, signal?: AbortSignal): Promise<ListPage>;
  makeDir(
    path: string,
    owner: { readonly uid: number; readonly gid: number; readonly mode: number },
    signal?: AbortSignal,
  ): Promise<{ readonly created: boolean }>;
  rename(
    source: string,
    destination: string,
    owner: { readonly uid: number; readonly gid: number },
    signal?: AbortSignal,
  ): Promise<void>;
  remove(path: string, signal?: AbortSignal): Promise<{ readonly removed: boolean }>;
  /** `body` yields against back-pressure and throws when the transfer breaks; leaving the loop early ends it in the guest. */
  readFile(
    path: string,
    range?: { readonly offset: bigint; readonly length: bigint },
    signal?: AbortSignal,
  ): Promise<{ readonly entry: GuestEntry; readonly body: AsyncIterable<Uint8Array> }>;
  /** All or nothing; resolves with the size in bytes. */
  writeFile(
    request: WriteFileRequest,
    body: AsyncIterable<Uint8Array>,
    signal?: AbortSignal,
  ): Promise<{ readonly size: bigint }>;
  composeFile(
    sources: readonly string[],
    request: Omit<WriteFileRequest, 'xattrs'>,
    signal?: AbortSignal,
  ): Promise<{ readonly size: bigint }>;
  /** Resolves when the watch is armed; disposing it ends it. */
  watch(
    path: string,
    options: { readonly recursive: boolean },
    onEvent: (event: WatchEvent) => void,
    signal?: AbortSignal,
  ): Promise<AsyncDisposable>;

  /** TCP to a port of the sandbox; half-close works on both sides. */
  connectPort(port: number, signal?: AbortSignal): Promise<Duplex>;
  /** Connections made inside the sandbox to 127.0.0.1:port or [::1]:port. */
  listenPort(port: number, onConnection: (connection: Duplex) => void, signal?: AbortSignal): Promise<AsyncDisposable>;

  /** Raw throughput of the channel, the floor of the bench. */
  source(bytes: bigint, frame: number, onData: (data: Uint8Array) => void, signal?: AbortSignal): Promise<void>;
  sink(body: AsyncIterable<Uint8Array>, signal?: AbortSignal): Promise<bigint>;
}
