import {
  type BuildId,
  DEFAULT_TAG,
  PlatformError,
  parseSnapshotName,
  parseTemplateReference,
  type SnapshotContext,
  type SnapshotMatch,
  type SnapshotName,
  type SnapshotRecord,
  type SnapshotTemplate,
  shorten,
  TEMPLATE_NAME_MAX,
} from '@agentenv/core';
import type { Backend } from '@agentenv/runtime';
import type { SnapshotRepository, TemplateRecord } from '@agentenv/storage';
import type { ReadyTemplate, TemplateRegistry } from './template-registry.ts';

/** A template as clients see it; its own fields are those of the build its default tag means, or of its newest. */
export interface CataloguedTemplate extends TemplateRecord {
  /** Newest first. */
  readonly builds: readonly TemplateRecord[];
}

/** A template a sandbox is being started from: until it is disposed it cannot be deleted. */
export interface LeasedTemplate extends Omit<ReadyTemplate, 'alias'>, Disposable {
  /** Name by which it is shown, without namespace and tag; snapshots need not have one. */
  readonly alias: string | undefined;
  /** What its sandboxes inherit; undefined: the defaults of this server. */
  readonly context: SnapshotContext | undefined;
}

/** Everything a sandbox can be started from: the templates of this host and the snapshots of its sandboxes. */
export interface TemplateCatalogue {
  /** What can be started from now. */
  list(): readonly CataloguedTemplate[];
  /** By id, name or snapshot id. Unknown: undefined; malformed: `invalid_argument`. */
  find(reference: string): CataloguedTemplate | undefined;
  /**
   * For a create. As `TemplateRegistry.resolve`, and for a snapshot: `create_failed` when its files are damaged, `conflict`
   * naming both fingerprints when this host cannot restore it.
   */
  resolve(reference: string): Promise<LeasedTemplate>;
  /** Counts a sandbox started from it; never waited for. */
  spawned(from: { readonly templateId: string; readonly buildId: BuildId | undefined }): void;
  /** The name a snapshot is to get. Malformed, or that of a template: `invalid_argument`. */
  snapshotName(text: string): SnapshotName;
  /**
   * Deletes the snapshot that is meant, or all of a name or template when the reference has no tag. `isUsed` is asked in the
   * same turn in which they become unreachable. Unknown: `not_found`; in use, or a template of the installation:
   * `invalid_argument`.
   */
  remove(reference: string, isUsed: (buildIds: ReadonlySet<string>) => boolean): Promise<void>;
}

export interface TemplateCatalogueDependencies {
  readonly registry: Pick<TemplateRegistry, 'list' | 'find' | 'resolve' | 'spawned' | 'owns'>;
  readonly snapshots: SnapshotRepository;
  readonly backend: Pick<Backend, 'requireRestorable'>;
}

function toBuild(snapshot: SnapshotRecord): TemplateRecord {
  const { vcpus, memoryMB, diskSizeMB } = snapshot.resources;
  return {
    id: snapshot.templateId,
    buildId: snapshot.buildId,
    names: snapshot.name === undefined ? [] : [snapshot.name],
    ...{ vcpus, memoryMB, diskSizeMB },
    envdVersion: snapshot.envdVersion,
    createdAt: snapshot.createdAt,
    updatedAt: snapshot.createdAt,
    spawnCount: snapshot.spawnCount,
    lastSpawnedAt: snapshot.lastSpawnedAt,
  };
}

function toTemplate({ builds: snapshots }: SnapshotTemplate): CataloguedTemplate | undefined {
  const shown = snapshots.find(({ tags }) => tags.includes(DEFAULT_TAG)) ?? snapshots[0];
  if (shown === undefined) return undefined;
  const builds = snapshots.map(toBuild);
  const spawns = builds.flatMap(({ lastSpawnedAt }) => lastSpawnedAt ?? []);
  return {
    ...toBuild(shown),
    createdAt: Math.min(...builds.map(({ createdAt }) => createdAt)),
    updatedAt: Math.max(...builds.map(({ createdAt }) => createdAt)),
    spawnCount: builds.reduce((sum, { spawnCount }) => sum + spawnCount, 0),
    lastSpawnedAt: spawns.length === 0 ? undefined : Math.max(...spawns),
    builds,
  };
}

const notFound = (reference: string): PlatformError =>
  new PlatformError('not_found', `template '${shorten(reference, TEMPLATE_NAME_MAX)}' not found`);

export function createTemplateCatalogue(deps: TemplateCatalogueDependencies): TemplateCatalogue {
  const { registry, snapshots } = deps;
  const own = (record: TemplateRecord): CataloguedTemplate => ({ ...record, builds: [record] });

  /** The snapshot that is meant; the templates of the installation come first. */
  function locate(reference: string): SnapshotMatch | undefined {
    const parsed = parseTemplateReference(reference);
    return registry.owns(parsed) ? undefined : snapshots.locate(parsed);
  }

  async function lease(reference: string, { template, build }: SnapshotMatch): Promise<LeasedTemplate> {
    if (build === undefined) {
      const { tag = DEFAULT_TAG } = parseTemplateReference(reference);
      const shown = template.name ?? template.id;
      throw new PlatformError('not_found', `tag '${tag}' does not exist for template '${shown}'`);
    }
    const held = await snapshots.lease(build.buildId);
    try {
      const { directory, manifest } = held.capture;
      await deps.backend.requireRestorable(manifest);
      return {
        record: toBuild(build),
        snapshot: { directory, manifest },
        alias: build.name,
        context: build.context,
        [Symbol.dispose]: () => held[Symbol.dispose](),
      };
    } catch (error) {
      held[Symbol.dispose]();
      throw error;
    }
  }

  return {
    list: () => [
      ...registry.list().map(own),
      ...snapshots.templates().flatMap((template) => toTemplate(template) ?? []),
    ],
    find(reference) {
      const match = locate(reference);
      if (match === undefined) {
        const record = registry.find(reference);
        return record === undefined ? undefined : own(record);
      }
      return match.means === 'build' && match.build === undefined ? undefined : toTemplate(match.template);
    },
    async resolve(reference) {
      const match = locate(reference);
      if (match !== undefined) return await lease(reference, match);
      return { ...(await registry.resolve(reference)), context: undefined, [Symbol.dispose]() {} };
    },
    spawned({ templateId, buildId }) {
      if (buildId !== undefined && snapshots.get(buildId) !== undefined) snapshots.spawned(buildId);
      else registry.spawned(templateId);
    },
    snapshotName(text) {
      const name = parseSnapshotName(text, snapshots.namespace);
      if (registry.owns({ namespace: undefined, alias: name.name, tag: undefined })) {
        throw new PlatformError('invalid_argument', `name '${name.name}' belongs to a template`);
      }
      return name;
    },
    async remove(reference, isUsed) {
      const parsed = parseTemplateReference(reference);
      if (registry.owns(parsed)) {
        const message = `template '${parsed.alias}' belongs to the installation and cannot be deleted`;
        throw new PlatformError('invalid_argument', message);
      }
      const match = snapshots.locate(parsed);
      const builds = match?.means === 'template' ? match.template.builds : match?.build && [match.build];
      if (builds === undefined) throw notFound(reference);
      if (isUsed(new Set(builds.map(({ buildId }) => buildId)))) {
        const message = `'${shorten(reference, TEMPLATE_NAME_MAX)}' is in use: a sandbox started from it is running or paused`;
        throw new PlatformError('invalid_argument', message);
      }
      await snapshots.delete(builds);
    },
  };
}
