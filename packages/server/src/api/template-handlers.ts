import { type PagePosition, PlatformError, shorten, TEMPLATE_NAME_MAX } from '@agentenv/core';
import type { components } from '@agentenv/protocol/control-plane';
import type { TemplateRecord } from '@agentenv/storage';
import type { Orchestrator } from '../orchestrator/orchestrator.ts';
import type { TemplateCatalogue } from '../templates/template-catalogue.ts';
import type { Handlers } from './operations.ts';
import { nextPageHeader, paginate } from './pages.ts';

type Template = components['schemas']['Template'];
type TemplateWithBuilds = components['schemas']['TemplateWithBuilds'];

/** What the template routes read. */
export type TemplateReader = Pick<TemplateCatalogue, 'list' | 'find'>;

type CataloguedTemplate = ReturnType<TemplateReader['list']>[number];

type TemplateHandlers = Pick<
  Handlers,
  'listTemplates' | 'listTemplatesV2' | 'getTemplate' | 'getTemplateByAlias' | 'deleteTemplate'
>;

export interface TemplateHandlerDependencies {
  readonly templates: TemplateReader;
  readonly orchestrator: Pick<Orchestrator, 'deleteTemplate'>;
}

/** Handlers of the template routes. */
export function createTemplateHandlers({ templates, orchestrator }: TemplateHandlerDependencies): TemplateHandlers {
  const find = (reference: string): CataloguedTemplate => {
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
      const builds = paginate(template.builds, buildPosition, {
        limit: query.limit ?? 100,
        nextToken: query.nextToken,
      });
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
    deleteTemplate: async ({ path }) => {
      await orchestrator.deleteTemplate(path.templateID);
      return { status: 204 };
    },
  };
}

function position({ createdAt, id }: TemplateRecord): PagePosition {
  return { startedAt: createdAt, id };
}

function buildPosition({ createdAt, buildId }: TemplateRecord): PagePosition {
  return { startedAt: createdAt, id: buildId };
}

function toTemplate(template: CataloguedTemplate): Template {
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
    buildCount: template.builds.length,
  };
}

/** `builds`: the page of them that is shown. */
function toTemplateWithBuilds(template: CataloguedTemplate, builds: readonly TemplateRecord[]): TemplateWithBuilds {
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
