import type { BuildId, CaptureId, InstanceId, SandboxId, TemplateId } from './ids.ts';
import type { NetworkPolicy } from './network-policy.ts';
import type { SandboxState } from './state-machine.ts';

export interface Resources {
  readonly vcpus: number;
  /** MiB. */
  readonly memoryMB: number;
  /** MiB, the size of the sparse writable disk. */
  readonly diskSizeMB: number;
}

/** What is kept for the operator's custom extension; opaque here. */
export type ExtensionParams = Readonly<Record<string, unknown>>;

export type TimeoutAction = 'kill' | 'pause';

/** What a pause keeps of a sandbox: its memory with processes and devices and its disk, or its disk alone. */
export type CaptureKind = 'full' | 'disk';

/** Everything durable about one sandbox; written to the ledger before the effect it describes. Unknown keys in stored records are kept out of the way, not refused. */
export interface SandboxRecord {
  readonly id: SandboxId;
  readonly templateId: TemplateId;
  /** The build of the template it was started from; undefined in records of before that was noted. */
  readonly buildId: BuildId | undefined;
  /** Template name by which it was created, shown as `alias`. */
  readonly alias: string | undefined;
  readonly state: SandboxState;
  readonly instanceId: InstanceId;
  /** Milliseconds since the epoch. */
  readonly createdAt: number;
  readonly startedAt: number;
  /**
   * When the timeout fires, milliseconds since the epoch; undefined while Creating. Of a paused one: when it was paused
   * (contract e2b.md 6.4).
   */
  readonly deadline: number | undefined;
  /** The last duration asked for, seconds. */
  readonly timeoutSeconds: number;
  readonly onTimeout: TimeoutAction;
  /** What a pause at its timeout keeps. */
  readonly timeoutKeeps: CaptureKind;
  readonly autoResume: boolean;
  readonly secure: boolean;
  readonly resources: Resources;
  readonly network: NetworkPolicy;
  readonly metadata: Readonly<Record<string, string>>;
  readonly customExtensionParams: ExtensionParams;
  readonly envVars: Readonly<Record<string, string>>;
  readonly defaultUser: string;
  readonly defaultWorkdir: string | undefined;
  readonly envdVersion: string;
  readonly backend: string;
  /** Secret of the agent channel of this generation, hex; ledgered before it is given to the guest. */
  readonly channelKey: string;
  /** What it was last restored from and, while it is paused, is restored from; undefined before its first pause. */
  readonly capture: CaptureId | undefined;
  /** What that capture holds; `full` where there is none. */
  readonly captureKind: CaptureKind;
  /** What the backend needs to adopt or clean up this generation after a crash; opaque above the backend. */
  readonly runtime: Readonly<Record<string, unknown>> | undefined;
  /** Of one in `killing`: it held no engine when it was killed, so nothing has to be told of the end of its instance. */
  readonly engineGone?: boolean | undefined;
}
