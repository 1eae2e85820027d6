import { PlatformError } from './errors.ts';
import { type BuildId, isPlatformId, isUuid, type SandboxId, type TemplateId } from './ids.ts';
import type { ExtensionParams, Resources } from './sandbox.ts';
import { DEFAULT_TAG, parseTemplateReference, TEMPLATE_NAME_MAX } from './template-reference.ts';

/** What a sandbox was started from. */
export interface SnapshotOrigin {
  readonly templateId: TemplateId;
  /** undefined for sandboxes of before builds were noted. */
  readonly buildId: BuildId | undefined;
}

/** What a sandbox made of the snapshot gets, unless its create says otherwise. */
export interface SnapshotContext {
  readonly envVars: Readonly<Record<string, string>>;
  readonly defaultUser: string;
  readonly defaultWorkdir: string | undefined;
  readonly customExtensionParams: ExtensionParams;
}

/**
 * One snapshot of a sandbox: a build of a template that snapshots of the same name share (contract e2b.md 6.5). It is the
 * commit record of its capture: what no record names does not exist.
 */
export interface SnapshotRecord {
  /** Names the snapshot for good; also the name of its capture's directory. */
  readonly buildId: BuildId;
  readonly templateId: TemplateId;
  /** Without namespace and tag; undefined for one that was given no name. */
  readonly name: string | undefined;
  /** The tags of its template that mean this build now; a newer build takes them over. */
  readonly tags: readonly string[];
  /** Milliseconds since the epoch. */
  readonly createdAt: number;
  /** The sandbox it was taken of; that may be gone. */
  readonly sandboxId: SandboxId;
  /** What that sandbox had been started from. */
  readonly origin: SnapshotOrigin;
  readonly backend: string;
  /** sha256 of the manifest file, which has those of all others. */
  readonly manifestDigest: string;
  readonly resources: Resources;
  readonly envdVersion: string;
  readonly context: SnapshotContext;
  readonly spawnCount: number;
  readonly lastSpawnedAt: number | undefined;
}

/** The name a snapshot is to get. */
export interface SnapshotName {
  readonly name: string;
  readonly tag: string;
}

function refuse(text: string, why: string): PlatformError {
  return new PlatformError('invalid_argument', `invalid name '${text}': ${why}`);
}

/**
 * Reads the name a client gives a snapshot: `name`, `name:tag`, or either behind the namespace of this server. Anything
 * else, and whatever could be taken for an id: `invalid_argument`.
 */
export function parseSnapshotName(text: string, namespace: string): SnapshotName {
  const reference = parseTemplateReference(text, 'name');
  const { alias: name, tag = DEFAULT_TAG } = reference;
  if (reference.namespace !== undefined && reference.namespace !== namespace) {
    throw refuse(text, `the namespace of this server is '${namespace}'`);
  }
  if (isPlatformId(name) || isUuid(name)) throw refuse(text, 'it could be taken for an id');
  if (qualifiedName(namespace, name, tag).length > TEMPLATE_NAME_MAX) {
    throw refuse(text, `longer than ${TEMPLATE_NAME_MAX} characters with its namespace and tag`);
  }
  return { name, tag };
}

function qualifiedName(namespace: string, name: string, tag: string): string {
  return `${namespace}/${name}:${tag}`;
}

/** The full names by which a snapshot can be reached, the default one first. */
export function snapshotNames({ name, tags }: SnapshotRecord, namespace: string): readonly string[] {
  if (name === undefined) return [];
  const ordered = tags.toSorted((left, right) => Number(right === DEFAULT_TAG) - Number(left === DEFAULT_TAG));
  return ordered.map((tag) => qualifiedName(namespace, name, tag));
}

/**
 * How clients call a snapshot, always with a tag (contract e2b.md 6.5): by its name, without one by its template, and when
 * a newer build has taken its name by its build.
 */
export function snapshotId(snapshot: SnapshotRecord, namespace: string): string {
  const [name] = snapshotNames(snapshot, namespace);
  if (name !== undefined) return name;
  const [tag] = snapshot.tags;
  return tag === undefined ? `${snapshot.buildId}:${DEFAULT_TAG}` : `${snapshot.templateId}:${tag}`;
}
