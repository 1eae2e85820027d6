import { createHash } from 'node:crypto';
import { PlatformError, type SnapshotManifest } from '@agentenv/core';

/** The file of every capture that describes it (contract/README, "manifest file"). */
export const MANIFEST_FILE = 'manifest.json';

/** Its name before there was more than one backend; read where there is no other. */
export const FIRST_MANIFEST_FILE = 'firecracker-manifest.json';

/** Of manifests from before there was more than one backend (agentenv.md 9.4). */
const FIRST_BACKEND = 'firecracker';

function damaged(why: string, cause?: unknown): PlatformError {
  return new PlatformError('internal', `the manifest of the stored state is damaged: ${why}`, { cause });
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** sha256 of a manifest file, hexadecimal. */
export function digestManifest(content: Uint8Array): string {
  return createHash('sha256').update(content).digest('hex');
}

/**
 * Reads a manifest, format 1. What the platform decides by is checked; everything else belongs to the backend that wrote
 * it and is passed on as it is. One of the first backend has neither fingerprint nor key, and is refused by every other
 * backend for that. Throws `internal` naming what is wrong.
 */
export function decodeManifest(content: Uint8Array): SnapshotManifest {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(content));
  } catch (error) {
    throw damaged('it is not JSON', error);
  }
  if (!isObject(value)) throw damaged('it is not an object');
  if (value.formatVersion !== 1) throw damaged(`format ${String(value.formatVersion)}, this version reads 1`);
  const { backend = FIRST_BACKEND } = value;
  if (typeof backend !== 'string') throw damaged('backend is not text');
  const { fingerprint, channelKey } = backend === FIRST_BACKEND ? { fingerprint: {}, channelKey: '', ...value } : value;
  if (!isObject(fingerprint) || !Object.values(fingerprint).every((fact) => typeof fact === 'string')) {
    throw damaged('fingerprint is not an object of texts');
  }
  if (typeof channelKey !== 'string') throw damaged('channelKey is not text');
  return { ...value, backend, fingerprint, channelKey } as unknown as SnapshotManifest;
}
