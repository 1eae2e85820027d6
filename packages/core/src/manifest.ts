/** A file that belongs to a snapshot, relative to the directory of its manifest or content-addressed. */
export interface SnapshotArtifact {
  readonly path: string;
  /** Bytes as stored. */
  readonly size: number;
  /** Virtual size in bytes, for memory and disks. */
  readonly virtualSize?: number;
  readonly sha256?: string;
}

/**
 * `manifest.json`, format version 1: what every part of the platform may read about a snapshot (agentenv.md 9.4).
 * A missing `backend` reads as `firecracker`; unknown keys are ignored.
 */
export interface SnapshotManifest {
  readonly formatVersion: 1;
  readonly backend: string;
  /** What must match for a restore: engine version, machine, accelerator, cpu, devices, kernel. */
  readonly fingerprint: Readonly<Record<string, string>>;
  readonly resources: { readonly vcpus: number; readonly memoryMB: number; readonly diskSizeMB: number };
  readonly vmState: SnapshotArtifact;
  readonly memory: SnapshotArtifact;
  readonly rootfs: SnapshotArtifact;
  readonly disk: SnapshotArtifact;
  /** Secret with which the captured guest answers its first resync, hex. */
  readonly channelKey: string;
  readonly createdAt: string;
}
