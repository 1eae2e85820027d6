import type { InstanceId, SnapshotArtifact } from '@agentenv/core';
import type { RootFilesystem } from '../backend.ts';
import type { ProcessIdentity } from '../processes.ts';
import { isFields } from './qmp-events.ts';
import type { SnapshotFiles } from './snapshot-files.ts';

/** Facts with which a later server finds exactly this engine and what it was started on. */
export interface EngineIdentity extends ProcessIdentity {
  readonly name: string;
  readonly uuid: string;
  /** The file mapped as guest memory, as the kernel names it. */
  readonly mapped: string;
  /** The raw image below all layers of the writable disk. */
  readonly diskBase: string;
}

/** What lies at the bottom of a guest: without memory where it was booted. */
export type MachineOrigin = Pick<SnapshotFiles, 'memory' | 'disk'>;

/** Everything of a generation that only its server knows; JSON, kept in the ledger. */
export interface MachineIdentity extends EngineIdentity {
  readonly backend: string;
  readonly instanceId: InstanceId;
  readonly slot: number;
  /** Of that slot: both change with the server's configuration. */
  readonly uid: number;
  readonly hostInteractionIp: string;
  readonly rootfs: RootFilesystem;
  /** Undefined: it was booted on an empty disk. */
  readonly origin: MachineOrigin | undefined;
  /** Of the engine, whatever the server's own has become. */
  readonly fingerprint: Readonly<Record<string, string>>;
  readonly [key: string]: unknown;
}

const text = (value: unknown): value is string => typeof value === 'string';
const whole = (value: unknown): value is number => Number.isSafeInteger(value);

function isArtifact(value: unknown): value is SnapshotArtifact {
  return isFields(value) && text(value.path) && whole(value.size);
}

function isOrigin(value: unknown): value is MachineOrigin {
  return isFields(value) && (value.memory === undefined || isArtifact(value.memory)) && isArtifact(value.disk);
}

/** What the ledger has of a generation; undefined when that is too little to go on with it. */
export function readIdentity(identity: Readonly<Record<string, unknown>> | undefined): MachineIdentity | undefined {
  if (identity === undefined) return undefined;
  const { rootfs, origin, fingerprint } = identity;
  const texts = ['backend', 'instanceId', 'name', 'uuid', 'mapped', 'diskBase', 'hostInteractionIp'].every((key) =>
    text(identity[key]),
  );
  const numbers = ['pid', 'startTime', 'slot', 'uid'].every((key) => whole(identity[key]));
  const image = isFields(rootfs) && text(rootfs.path) && text(rootfs.digest);
  const engine = isFields(fingerprint) && Object.values(fingerprint).every(text);
  if (!texts || !numbers || !image || !engine || (origin !== undefined && !isOrigin(origin))) return undefined;
  return identity as unknown as MachineIdentity;
}
