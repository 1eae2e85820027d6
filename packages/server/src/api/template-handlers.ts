import { type PagePosition, PlatformError, shorten, TEMPLATE_NAME_MAX } from '@agentenv/core';
import type { components } from '@agentenv/protocol/control-plane';
import type { TemplateRecord } from '@agentenv/storage';
import type { Handlers } from './operations.ts';
import { nextPageHeader, paginate } from './pages.ts';

type Template = components['schemas']['Template'];
type TemplateWithBuilds = components['schemas']['TemplateWithBuilds'];

/** What the template routes read. */
export interface TemplateReader {
  list(): readonly TemplateRecord[];
  /** By id or name, as a client wrote it. Unknown: undefined; malformed: `invalid_argument`. */
  find(reference: string): TemplateRecord | undefined;
}

type TemplateHandlers = Pick<Handlers, 'listTemplates' | 'listTemplatesV2' | 'getTemplate' | 'getTemplateByAlias'>;

/** Handlers of the reads of templates. */
export function createTemplateHandlers(templates: TemplateReader): TemplateHandlers {
  const find = (reference: string): TemplateRecord => {
    const template = templates.find(reference);
    if (template !== undefined) return template;
    throw new PlatformError('not_found', `template '${shorten(reference, TEMPLATE_NAME_MAX)}' not found`);
  };
  const page = (limit: number, nextToken: string | undefined) => {
    const { items, nextToken: next } = paginate(templates.list(), position, { limit, nextToken });
    return { status: 200 as const, body: items.map(toTemplate), headers: nextPageHeader(next) };
  };

  return {
    listTemplates: () => page(Number.MAX_SAFE_INTEGER, undefined),
    listTemplatesV2: ({ query }) => page(query.limit ?? 100, query.nextToken),
    getTemplate: ({ path, query }) => {
      const template = find(path.templateID);
      const builds = paginate([template], position, { limit: query.limit ?? 100, nextToken: query.nextToken });
      return {
        status: 200,
        body: toTemplateWithBuilds(template, builds.items),
        headers: nextPageHeader(builds.nextToken),
      };
    },
    getTemplateByAlias: ({ path }) => ({
      status: 200,
      body: { templateID: find(path.alias).id, public: false },
    }),
  };
}

function position({ createdAt, id }: TemplateRecord): PagePosition {
  return { startedAt: createdAt, id };
}

function toTemplate(template: TemplateRecord): Template {
  return {
    templateID: template.id,
    buildID: template.buildId,
    buildStatus: 'ready',
    public: false,
    names: template.names,
    aliases: template.names,
    cpuCount: template.vcpus,
    memoryMB: template.memoryMB,
    diskSizeMB: template.diskSizeMB,
    envdVersion: template.envdVersion,
    createdAt: time(template.createdAt),
    updatedAt: time(template.updatedAt),
    createdBy: null,
    lastSpawnedAt: template.lastSpawnedAt === undefined ? null : time(template.lastSpawnedAt),
    spawnCount: template.spawnCount,
    buildCount: 1,
  };
}

/** A template has one build; `builds` is the page of them that is shown. */
function toTemplateWithBuilds(template: TemplateRecord, builds: readonly TemplateRecord[]): TemplateWithBuilds {
  return {
    templateID: template.id,
    public: false,
    names: template.names,
    aliases: template.names,
    createdAt: time(template.createdAt),
    updatedAt: time(template.updatedAt),
    lastSpawnedAt: template.lastSpawnedAt === undefined ? null : time(template.lastSpawnedAt),
    spawnCount: template.spawnCount,
    builds: builds.map((build) => ({
      buildID: build.buildId,
      status: 'ready',
      createdAt: time(build.createdAt),
      updatedAt: time(build.updatedAt),
      finishedAt: time(build.updatedAt),
      cpuCount: build.vcpus,
      memoryMB: build.memoryMB,
      diskSizeMB: build.diskSizeMB,
      envdVersion: build.envdVersion,
    })),
  };
}

function time(milliseconds: number): string {
  return new Date(milliseconds).toISOString();
}
