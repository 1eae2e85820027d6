/** Every backend there is; nothing is published under another name (agentenv.md 9.4). */
export const BACKEND_NAMES = ['qemu', 'container', 'firecracker', 'fake'] as const;

/** A file that belongs to a snapshot. */
export interface SnapshotArtifact {
  /** Relative to the directory of the manifest, or absolute where snapshots share the file. */
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
  /** Absent, as is `memory`: a capture of the disk alone, which can be booted and not restored. */
  readonly vmState?: SnapshotArtifact;
  readonly memory?: SnapshotArtifact;
  readonly rootfs: SnapshotArtifact;
  readonly disk: SnapshotArtifact;
  /** Memory that differs from `memory`: each layer replaces the pages it holds. None: the memory is whole. */
  readonly memoryLayers?: readonly SnapshotArtifact[];
  /** Changes of the writable disk upon `disk`, oldest first. None: the disk is whole. */
  readonly diskLayers?: readonly SnapshotArtifact[];
  /** Secret with which the captured guest answers its first resync, hex; empty without memory. */
  readonly channelKey: string;
  readonly createdAt: string;
}
