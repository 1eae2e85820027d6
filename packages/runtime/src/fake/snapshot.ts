import { createHash } from 'node:crypto';
import {
  type CaptureKind,
  PlatformError,
  type Resources,
  type SnapshotArtifact,
  type SnapshotManifest,
} from '@agentenv/core';
import type { StoredSnapshot } from '../backend.ts';
import type { ArtifactStore } from './artifacts.ts';
import { diskOf, type GuestImage } from './guest.ts';

const MANIFEST = 'manifest.json';

export interface SnapshotFacts {
  readonly backend: string;
  readonly contents: CaptureKind;
  readonly fingerprint: Readonly<Record<string, string>>;
  readonly resources: Resources;
  readonly rootfs: { readonly path: string };
  readonly channelKey: Uint8Array;
  /** Milliseconds since the epoch. */
  readonly createdAt: number;
}

/** Writes a guest, or its disk alone, as a snapshot directory with the same parts a machine has; the manifest last. */
export async function writeSnapshot(
  artifacts: ArtifactStore,
  directory: string,
  image: GuestImage,
  facts: SnapshotFacts,
): Promise<SnapshotManifest> {
  const { nodes, processes, ...state } = image;
  const put = async (name: string, value: unknown): Promise<SnapshotArtifact> => {
    const content = Buffer.from(encode(value));
    await artifacts.put(directory, name, content);
    return { path: name, size: content.byteLength, sha256: createHash('sha256').update(content).digest('hex') };
  };
  const full = facts.contents === 'full';
  const manifest: SnapshotManifest = {
    formatVersion: 1,
    backend: facts.backend,
    fingerprint: facts.fingerprint,
    resources: facts.resources,
    ...(full ? { vmState: await put('state.json', state), memory: await put('memory.json', processes) } : {}),
    rootfs: { path: facts.rootfs.path, size: 0 },
    disk: await put('disk.json', [...(full ? nodes : diskOf(nodes))]),
    channelKey: full ? Buffer.from(facts.channelKey).toString('hex') : '',
    createdAt: new Date(facts.createdAt).toISOString(),
  };
  await artifacts.put(directory, MANIFEST, Buffer.from(`${JSON.stringify(manifest, undefined, 2)}\n`));
  return manifest;
}

/** The manifest of a directory, undefined when no complete snapshot is there. */
export async function readManifest(artifacts: ArtifactStore, directory: string): Promise<SnapshotManifest | undefined> {
  const content = await artifacts.get(directory, MANIFEST);
  return content === undefined ? undefined : JSON.parse(Buffer.from(content).toString());
}

/** Reads a part; throws `create_failed` when it is missing or is not what the manifest says. */
async function readPart(
  artifacts: ArtifactStore,
  { directory }: StoredSnapshot,
  artifact: SnapshotArtifact,
): Promise<unknown> {
  const content = await artifacts.get(directory, artifact.path);
  const digest = content === undefined ? undefined : createHash('sha256').update(content).digest('hex');
  if (content === undefined || digest !== artifact.sha256) {
    throw new PlatformError('create_failed', `the snapshot is damaged: ${artifact.path}`, {
      details: { directory, expected: artifact.sha256, found: digest },
    });
  }
  return decode(Buffer.from(content).toString());
}

/** Reads a guest back; throws `create_failed` when a part is damaged. */
export async function readSnapshot(artifacts: ArtifactStore, snapshot: StoredSnapshot): Promise<GuestImage> {
  const { vmState, memory, disk } = snapshot.manifest;
  if (vmState === undefined || memory === undefined)
    throw new PlatformError('conflict', 'the snapshot holds no memory');
  const state = (await readPart(artifacts, snapshot, vmState)) as Omit<GuestImage, 'nodes' | 'processes'>;
  const processes = (await readPart(artifacts, snapshot, memory)) as GuestImage['processes'];
  const nodes = (await readPart(artifacts, snapshot, disk)) as [string, never][];
  return { ...state, processes, nodes: new Map(nodes) };
}

/** Reads what a boot finds on the disk of a capture; throws `create_failed` when that is damaged. */
export async function readDisk(artifacts: ArtifactStore, snapshot: StoredSnapshot): Promise<GuestImage['nodes']> {
  const nodes = (await readPart(artifacts, snapshot, snapshot.manifest.disk)) as [string, never][];
  return diskOf(new Map(nodes));
}

/** JSON with bytes, bigints, maps and infinity kept. */
function encode(value: unknown): string {
  return JSON.stringify(value, function (this: Record<string, unknown>, key) {
    const raw = this[key];
    if (raw instanceof Uint8Array) return { $bytes: Buffer.from(raw).toString('base64') };
    if (typeof raw === 'bigint') return { $bigint: raw.toString() };
    if (raw instanceof Map) return { $map: [...raw] };
    if (raw === Number.POSITIVE_INFINITY) return { $infinity: true };
    return raw;
  });
}

function decode(text: string): unknown {
  return JSON.parse(text, (_key, value: unknown) => {
    if (typeof value !== 'object' || value === null) return value;
    if ('$bytes' in value) return Uint8Array.from(Buffer.from(String(value.$bytes), 'base64'));
    if ('$bigint' in value) return BigInt(String(value.$bigint));
    if ('$map' in value) return new Map(value.$map as [unknown, unknown][]);
    if ('$infinity' in value) return Number.POSITIVE_INFINITY;
    return value;
  });
}
