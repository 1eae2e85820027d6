import type { Agent } from '@agentenv/agent';
import type { InstanceId, NetworkPolicy, Resources, SandboxId, SnapshotManifest } from '@agentenv/core';

export type Isolation = 'vm' | 'container' | 'none';

export interface ProbeResult {
  readonly usable: boolean;
  /** Why not, or what limits it; one sentence each. */
  readonly reasons: readonly string[];
  /** What the operator can do about each reason. */
  readonly remedies: readonly string[];
  readonly isolation: Isolation;
  readonly accelerator: 'kvm' | 'tcg' | 'native';
  readonly memorySnapshots: boolean;
  readonly kernelArguments: boolean;
  /** Rough speed for placement: native ≥ accelerated ≥ emulated. */
  readonly speedClass: 'native' | 'accelerated' | 'emulated';
}

/** A root file system on this host: one read-only image, content-addressed. */
export interface RootFilesystem {
  /** Absolute path of the read-only image. */
  readonly path: string;
  /** sha256 of what it was built from. */
  readonly digest: string;
}

/** A captured template or snapshot on this host; `directory` holds `manifest.json` and its artifacts. */
export interface StoredSnapshot {
  readonly directory: string;
  readonly manifest: SnapshotManifest;
}

/** The network slot of one generation, as services of the operator on this host may use it. */
export interface LiveSlot {
  /** Absolute path of the namespace; it can be entered while the generation lives. */
  readonly networkNamespacePath: string;
  /** IPv4 address inside the namespace, routed from the gateway. */
  readonly hostInteractionIp: string;
}

/** What whoever prepared a slot asks of the start. */
export interface StartAdvice {
  /** Appended to the kernel command line of a cold boot, as it is; a restore has booted already and ignores it. */
  readonly kernelArguments?: string;
}

/** Who wants to know of the slot of a generation. */
export interface SlotCalls {
  /**
   * Called at most once, when the slot is there and its policy in force, before any instruction of this generation runs.
   * A rejection fails the start with that very error.
   */
  readonly beforeStart?: (slot: LiveSlot, signal: AbortSignal) => Promise<StartAdvice>;
  /**
   * Called once when `beforeStart` was, whatever became of it: after the engine is gone and before the slot can be used by
   * anybody else. Waited for, so it has to bound itself; it must not reject.
   */
  readonly afterStop?: () => Promise<void>;
}

/** Everything a backend needs to start one generation; decided and ledgered above it. */
export interface LaunchPlan extends SlotCalls {
  readonly sandboxId: SandboxId;
  readonly instanceId: InstanceId;
  readonly templateId: string;
  readonly resources: Resources;
  readonly network: NetworkPolicy;
  /** 16 bytes, secret of this generation's channel. */
  readonly channelKey: Uint8Array;
  readonly hostname: string;
  /**
   * `kept`: it goes on as the sandbox it was when it was captured, so that nothing of what its owner may have changed
   * since (host name, hosts file, resolver) is written again. Absent: it becomes this sandbox.
   */
  readonly identity?: 'kept';
}

export type RuntimeEndReason =
  | 'stopped'
  | 'engine-died'
  | 'guest-panic'
  | 'guest-poweroff'
  | 'guest-reboot'
  | 'disk-error'
  | 'channel-lost';

export interface RuntimeEnd {
  readonly reason: RuntimeEndReason;
  /** One sentence for logs. */
  readonly detail: string;
}

/** One running generation. Everything it holds (processes, disk, slot, cgroup, sockets) is released by `stop`. */
export interface RunningSandbox extends AsyncDisposable {
  readonly instanceId: InstanceId;
  /** Serialisable facts with which a later server can adopt or clean up this generation; written to the ledger. */
  readonly identity: Readonly<Record<string, unknown>>;
  readonly agent: Agent;
  /** Resolves once, when the generation can no longer run, whoever ended it; resources are already being released. */
  readonly ended: Promise<RuntimeEnd>;
  freeze(): Promise<void>;
  thaw(): Promise<void>;
  /**
   * Captures memory, devices and disk into an empty directory, all of it on the platter, and leaves the guest held
   * (stopped, alive) on success; afterwards exactly one of `release` or `stop`. On a recoverable error (`no_space`,
   * `canceled`, `deadline_exceeded`, …) the guest runs on and the directory is empty again; `sandbox_unavailable` is
   * terminal: it has ended.
   */
  capture(directory: string, signal?: AbortSignal): Promise<CapturedSnapshot>;
  /**
   * The same without memory: the guest's processes are frozen, its file system is written to its disk, and the disk alone
   * is captured; what becomes of it later is for `Backend.boot`. Held on success and running on after an error, as after
   * `capture`.
   */
  captureDisk(directory: string, signal?: AbortSignal): Promise<CapturedSnapshot>;
  release(): Promise<void>;
  /**
   * Captures as `capture` does, but the guest goes on as soon as everything is copied, while that is still being written
   * to the platter and hashed; it is complete when this resolves. On an error the guest runs on, or has ended
   * (`sandbox_unavailable`). Open streams go on without a gap.
   */
  snapshot(directory: string, signal?: AbortSignal): Promise<CapturedSnapshot>;
  /** One atomic replacement of the egress rules; the old ones stay on failure. */
  applyNetwork(policy: NetworkPolicy, signal?: AbortSignal): Promise<void>;
  /** Ends it: never waits for the guest, SIGKILL at once. Idempotent; resolves when every resource is gone. */
  stop(): Promise<void>;
}

export interface CapturedSnapshot {
  readonly manifest: SnapshotManifest;
  /** Lets go of what the backend kept alive until publication. */
  release(): Promise<void>;
}

/** A generation that may be there when a server starts, as the ledger has it. */
export interface KnownInstance extends Pick<SlotCalls, 'afterStop'> {
  readonly sandboxId: SandboxId;
  readonly instanceId: InstanceId;
  /**
   * `ended`: it must not go on. `running-unless-held`: that of a sandbox whose pause was recorded before its engine was
   * stopped; it must not go on either, unless its guest runs: then the pause was taken back.
   */
  readonly wanted: 'running' | 'running-unless-held' | 'ended';
  /** As its `RunningSandbox` had it; one that an older or newer server wrote may lack or have more. */
  readonly identity: Readonly<Record<string, unknown>> | undefined;
  readonly resources: Resources;
  /** Put in force when it is adopted: a crash may have come between the record of a change and its effect. */
  readonly network: NetworkPolicy;
  /** 16 bytes, secret of this generation's channel. */
  readonly channelKey: Uint8Array;
}

/** What became of the generations of a former server. */
export interface Reconciliation {
  /** How many still ran and were ended, known or not. */
  readonly ended: number;
  /** Known ones that were still there, if only in part (their slot), and are gone now; as far as the backend can tell. */
  readonly endedKnown: readonly InstanceId[];
  /**
   * Known ones that go on. `afterStop` of such a one is called as if this server had started it; of all others it is not.
   */
  readonly adopted: readonly RunningSandbox[];
}

interface AdvanceStatus {
  readonly ready: number;
  readonly target: number;
  readonly hits: number;
  readonly misses: number;
}

export interface BackendStatus {
  /** Guests of a template, restored in advance. */
  readonly pool: AdvanceStatus;
  /** Engines started in advance that restore any capture of a template's sandboxes. */
  readonly engines: AdvanceStatus;
}

/** One way to run sandboxes. The same contract suite runs over every implementation. */
export interface Backend extends AsyncDisposable {
  readonly name: string;
  probe(signal?: AbortSignal): Promise<ProbeResult>;
  /** Boots `rootfs` once, warms it and captures it, or returns the cached capture whose fingerprint still matches. */
  prepareTemplate(rootfs: RootFilesystem, resources: Resources, signal?: AbortSignal): Promise<StoredSnapshot>;
  /** Keeps the pool for this template at its watermark from now on. */
  warm(snapshot: StoredSnapshot): void;
  /** Cold boot from a root file system. */
  create(rootfs: RootFilesystem, plan: LaunchPlan, signal?: AbortSignal): Promise<RunningSandbox>;
  /**
   * Cold boot from the disk of a capture, whatever memory it has: that is neither read nor changed. The fingerprint need not
   * match; a capture of another backend, or one whose root file system is not on this host, is a `conflict` before anything
   * starts.
   */
  boot(snapshot: StoredSnapshot, plan: LaunchPlan, signal?: AbortSignal): Promise<RunningSandbox>;
  /** Throws `conflict` naming both fingerprints for a capture this host cannot restore, or without memory; nothing is started. */
  requireRestorable(manifest: SnapshotManifest): Promise<void>;
  /** From a capture; resolves when the guest is activated and answers. Refuses a foreign or mismatching one, and one without memory (`conflict`), before anything starts. */
  restore(snapshot: StoredSnapshot, plan: LaunchPlan, signal?: AbortSignal): Promise<RunningSandbox>;
  /**
   * Run once, before anything else, over what a former server of this host left behind: generations that are wanted and
   * can go on are adopted, one that was stopped for a capture runs again; everything else is ended and cleaned, known or
   * not. A backend that cannot adopt ends all of them.
   */
  reconcile(known: readonly KnownInstance[]): Promise<Reconciliation>;
  /**
   * Ends as disposing does, except that running generations are left to the next server as they are. What is under way is
   * aborted. For a server that cannot start, which must not cost anybody his sandbox.
   */
  abandon(): Promise<void>;
  status(): BackendStatus;
}
