import type { Agent } from '@agentenv/agent';
import type {
  CaptureKind,
  ExtensionParams,
  NetworkPolicy,
  PlatformError,
  Resources,
  SandboxRecord,
  SnapshotRecord,
  TimeoutAction,
} from '@agentenv/core';
import type { EnvdService } from '@agentenv/envd';
import type { RootFilesystem } from '@agentenv/runtime';

/** A create request after validation: defaults applied, unknown fields gone. */
export interface CreateSandbox {
  /** Template id, name or `name:tag` as the client wrote it. */
  readonly template: string;
  readonly timeoutSeconds: number;
  readonly onTimeout: TimeoutAction;
  /** What a pause at the timeout keeps. */
  readonly timeoutKeeps: CaptureKind;
  readonly autoResume: boolean;
  readonly secure: boolean;
  readonly network: NetworkPolicy;
  readonly metadata: Readonly<Record<string, string>>;
  readonly envVars: Readonly<Record<string, string>>;
  /** undefined: those of the snapshot it is made of. */
  readonly customExtensionParams: ExtensionParams | undefined;
}

/** A sandbox that boots an image instead of going on from a capture. */
export interface CreateColdSandbox extends Omit<CreateSandbox, 'template'> {
  /** What clients call the image; shown as the template's id. */
  readonly image: string;
  readonly rootfs: RootFilesystem;
  readonly resources: Resources;
}

/** What a sandbox may reach; who may reach it is decided at its creation. */
export type EgressRules = Pick<NetworkPolicy, 'allowInternetAccess' | 'allowOut' | 'denyOut'>;

/** A fork request after validation. */
export interface ForkRequest {
  readonly count: number;
  /** Of each child, from the moment it is ready. */
  readonly timeoutSeconds: number;
}

/** What became of one child. */
export type ForkResult =
  | { readonly kind: 'started'; readonly record: SandboxRecord }
  | { readonly kind: 'failed'; readonly error: PlatformError };

export interface ListFilter {
  readonly states: readonly ('running' | 'paused')[];
  readonly metadata: ReadonlyMap<string, string>;
  /** Inclusive, milliseconds since the epoch. */
  readonly startedAfter: number | undefined;
  readonly template: string | undefined;
  readonly order: 'asc' | 'desc';
  readonly limit: number;
  readonly nextToken: string | undefined;
}

export interface ListPage {
  readonly sandboxes: readonly SandboxRecord[];
  readonly nextToken: string | undefined;
  /** Running matches before paging. */
  readonly totalRunning: number;
}

/** What the data plane needs about a sandbox. */
export type DataPlaneTarget =
  | {
      readonly kind: 'ready';
      readonly record: SandboxRecord;
      readonly envd: EnvdService;
      /** Connects to ports inside this generation. */
      readonly agent: Pick<Agent, 'connectPort'>;
      readonly sockets: SocketGroup;
    }
  /** Paused, and requests resume it once they have shown what they need. */
  | { readonly kind: 'asleep'; readonly record: SandboxRecord }
  /** Unknown or killed. */
  | { readonly kind: 'not-found' }
  /** Known, but not in a state that takes requests. */
  | { readonly kind: 'not-proxyable' };

/** Client sockets that belong to one generation; destroyed (reset) when it ends, after `/health` already answers 502. */
export interface SocketGroup {
  add(socket: { destroy(): void; once(event: 'close', listener: () => void): unknown }): void;
}

/** The lifecycle of every sandbox on this host. Errors are PlatformErrors. Work survives the caller's disconnect. */
export interface Orchestrator extends AsyncDisposable {
  create(request: CreateSandbox): Promise<SandboxRecord>;
  createCold(request: CreateColdSandbox): Promise<SandboxRecord>;
  /**
   * Lets the custom extension change the parameters kept for it; resolves with the new ones. `conflict` unless it runs, and
   * when it stopped running meanwhile.
   */
  patchParams(id: string, patch: ExtensionParams): Promise<ExtensionParams>;
  /**
   * Captures it, with its memory unless `keeps` says otherwise, and stops it. Joins a pause of that kind that is under way;
   * one of the other kind is waited for. A paused one is a `conflict`.
   */
  pause(id: string, keeps?: CaptureKind): Promise<void>;
  /**
   * Lets a paused one go on for so long. Without memory, or when `from` is its disk, it boots; memory that is there is
   * neither read nor changed. Joins a resume that is under way, of either kind; a running one is a `conflict`.
   */
  resume(id: string, timeoutSeconds: number, from?: CaptureKind): Promise<SandboxRecord>;
  /** Running: extends the deadline, never shortens it. Paused: resumes it. `resumed` decides 200 or 201. */
  connect(
    id: string,
    timeoutSeconds: number,
    from?: CaptureKind,
  ): Promise<{ readonly record: SandboxRecord; readonly resumed: boolean }>;
  /** Resumes it because of a request, once for any number of them; `conflict` when it may not be, as without memory. */
  wake(id: string): Promise<void>;
  /**
   * Captures a running sandbox, which goes on, and starts children from it: exactly `count` results in their order. Not
   * running: `conflict`.
   */
  fork(id: string, request: ForkRequest): Promise<readonly ForkResult[]>;
  /**
   * Publishes the present state of a running sandbox, which goes on. `name`: as a client wrote it, undefined for none. Not
   * running: `conflict`; a name that is malformed or a template's: `invalid_argument`.
   */
  snapshot(id: string, name: string | undefined): Promise<SnapshotRecord>;
  /** Deletes a snapshot, or all of a template. Unknown: `not_found`; in use: `invalid_argument`. */
  deleteTemplate(reference: string): Promise<void>;
  get(id: string): SandboxRecord;
  list(filter: ListFilter): ListPage;
  /** now + timeout, may shorten; 0 ends it now. */
  setTimeout(id: string, timeoutSeconds: number): Promise<void>;
  /** Extends only. */
  refresh(id: string, durationSeconds: number): Promise<void>;
  /**
   * Replaces the egress rules of a running sandbox whole; connections that are open stay. Not running: `conflict`; when it
   * fails the former rules stay.
   */
  updateNetwork(id: string, egress: EgressRules): Promise<void>;
  /** Never waits for a running step; joins a kill that is under way. */
  kill(id: string, reason: string): Promise<void>;
  target(id: string): DataPlaneTarget;
  /** Id of the sandbox whose envd token this is: older clients (e2b 2.10) send nothing else with files and health. */
  findByAccessToken(token: string): string | undefined;
  /** `envdAccessToken` of a secure sandbox, derived from the seed (agentenv.md section 14). */
  accessToken(record: SandboxRecord): string | undefined;
  /** Present when public traffic is off. */
  trafficAccessToken(record: SandboxRecord): string | undefined;
}
