import { PlatformError, type SnapshotManifest } from '@agentenv/core';

/** What a backend of this host can restore. */
export interface RestoreSupport {
  readonly backend: string;
  readonly fingerprint: Readonly<Record<string, string>>;
}

/** A fingerprint as one stable line: keys in byte order. */
export function formatFingerprint(fingerprint: Readonly<Record<string, string>>): string {
  const keys = Object.keys(fingerprint).sort();
  return keys.map((key) => `${key}=${fingerprint[key]}`).join(' ');
}

/** True when every fact of both fingerprints is the same. */
export function sameFingerprint(
  left: Readonly<Record<string, string>>,
  right: Readonly<Record<string, string>>,
): boolean {
  return formatFingerprint(left) === formatFingerprint(right);
}

/**
 * Refuses a capture this host cannot restore, before anything starts (contract/README "foreign or mismatching snapshot").
 * Throws `conflict` naming both backends and fingerprints.
 */
export function assertRestorable(manifest: SnapshotManifest, support: RestoreSupport): void {
  if (manifest.memory === undefined && manifest.backend === support.backend) {
    throw new PlatformError('conflict', 'the snapshot holds no memory: it can be booted, not restored');
  }
  const sameBackend = manifest.backend === support.backend;
  if (sameBackend && sameFingerprint(manifest.fingerprint, support.fingerprint)) return;
  const captured = `${manifest.backend} (${formatFingerprint(manifest.fingerprint) || 'no fingerprint'})`;
  const present = `${support.backend} (${formatFingerprint(support.fingerprint)})`;
  throw new PlatformError('conflict', `the snapshot was captured on ${captured}, this host restores ${present}`, {
    details: { captured: manifest.fingerprint, present: support.fingerprint },
  });
}

/** Refuses a capture whose disk this backend cannot read, before anything starts. Throws `conflict` naming both backends. */
export function assertBootable(manifest: SnapshotManifest, backend: string): void {
  if (manifest.backend === backend) return;
  throw new PlatformError('conflict', `the snapshot was captured on ${manifest.backend}, this host boots ${backend}`);
}
