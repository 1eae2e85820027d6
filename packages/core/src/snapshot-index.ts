import { isPlatformId, isUuid } from './ids.ts';
import type { SnapshotName, SnapshotRecord } from './snapshot.ts';
import { DEFAULT_TAG, type TemplateReference } from './template-reference.ts';

/** The snapshots that share a name, or the only one without a name. */
export interface SnapshotTemplate {
  readonly id: SnapshotRecord['templateId'];
  readonly name: string | undefined;
  /** Newest first; never empty. */
  readonly builds: readonly SnapshotRecord[];
}

/** What a reference means. */
export interface SnapshotMatch {
  readonly template: SnapshotTemplate;
  /** undefined: its template has no build with that tag. */
  readonly build: SnapshotRecord | undefined;
  /** `template`: it has neither tag nor build id, so it stands for all builds where that makes sense. */
  readonly means: 'template' | 'build';
}

export interface SnapshotFilter {
  /** The sandbox they were taken of. */
  readonly sandboxId: string | undefined;
  /** Name, or id of a template or a build. */
  readonly name: string | undefined;
}

/** Every snapshot of this host, by all it can be called. */
export interface SnapshotIndex {
  get(buildId: string): SnapshotRecord | undefined;
  templates(): readonly SnapshotTemplate[];
  /** The template of a name. */
  named(name: string): SnapshotTemplate | undefined;
  locate(reference: TemplateReference): SnapshotMatch | undefined;
  list(filter: SnapshotFilter): readonly SnapshotRecord[];
  /** The records to write, all or none, so that `record` is known as `name`: itself, and who loses the tag by that. */
  claim(record: SnapshotRecord, name: SnapshotName | undefined): readonly [SnapshotRecord, ...SnapshotRecord[]];
  put(record: SnapshotRecord): void;
  delete(buildId: string): void;
}

/** Newest first; builds of the same millisecond by their ids, which ascend. */
function compareBuilds(left: SnapshotRecord, right: SnapshotRecord): number {
  if (left.createdAt !== right.createdAt) return right.createdAt - left.createdAt;
  return left.buildId < right.buildId ? 1 : -1;
}

export function createSnapshotIndex(options: { readonly namespace: string }): SnapshotIndex {
  const records = new Map<string, SnapshotRecord>();
  const byTemplate = new Map<string, SnapshotTemplate>();
  const byName = new Map<string, string>();

  function keep(id: SnapshotRecord['templateId'], builds: readonly SnapshotRecord[]): void {
    const [newest] = builds;
    if (newest !== undefined) {
      byTemplate.set(id, { id, name: newest.name, builds });
      if (newest.name !== undefined) byName.set(newest.name, id);
      return;
    }
    const name = byTemplate.get(id)?.name;
    byTemplate.delete(id);
    if (name !== undefined && byName.get(name) === id) byName.delete(name);
  }

  function others({ templateId, buildId }: SnapshotRecord): readonly SnapshotRecord[] {
    return byTemplate.get(templateId)?.builds.filter((build) => build.buildId !== buildId) ?? [];
  }

  function named(name: string): SnapshotTemplate | undefined {
    return byTemplate.get(byName.get(name) ?? '');
  }

  function templateOf(alias: string, namespace: string | undefined): SnapshotTemplate | undefined {
    if (namespace !== undefined && namespace !== options.namespace) return undefined;
    if (namespace === undefined && isPlatformId(alias)) return byTemplate.get(alias);
    return named(alias);
  }

  return {
    get: (buildId) => records.get(buildId),
    templates: () => [...byTemplate.values()],
    named,
    locate({ namespace, alias, tag }) {
      if (namespace === undefined && isUuid(alias)) {
        const build = records.get(alias);
        const template = build === undefined ? undefined : byTemplate.get(build.templateId);
        if (template === undefined) return undefined;
        return { template, build: tag === undefined || tag === DEFAULT_TAG ? build : undefined, means: 'build' };
      }
      const template = templateOf(alias, namespace);
      if (template === undefined) return undefined;
      const build = template.builds.find(({ tags }) => tags.includes(tag ?? DEFAULT_TAG));
      return { template, build, means: tag === undefined ? 'template' : 'build' };
    },
    list: ({ sandboxId, name }) =>
      [...records.values()].filter(
        (record) =>
          (sandboxId === undefined || record.sandboxId === sandboxId) &&
          (name === undefined || [record.name, record.templateId, record.buildId].includes(name)),
      ),
    claim(record, name) {
      if (name === undefined) return [{ ...record, name: undefined, tags: [DEFAULT_TAG] }];
      const template = named(name.name);
      const former = template?.builds.filter(({ tags }) => tags.includes(name.tag)) ?? [];
      return [
        { ...record, templateId: template?.id ?? record.templateId, name: name.name, tags: [name.tag] },
        ...former.map((build) => ({ ...build, tags: build.tags.filter((tag) => tag !== name.tag) })),
      ];
    },
    put(record) {
      records.set(record.buildId, record);
      keep(record.templateId, [...others(record), record].sort(compareBuilds));
    },
    delete(buildId) {
      const record = records.get(buildId);
      if (record === undefined) return;
      records.delete(buildId);
      keep(record.templateId, others(record));
    },
  };
}
